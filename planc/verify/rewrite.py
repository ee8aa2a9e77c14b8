"""Rewrite a graph for a small model on few ranks: its ops and their order stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import Any

from planc.data_sources.kinds import JsonLinesSource
from planc.graph import ops
from planc.graph.graph import AnyOp, Graph
from planc.graph.verify import verify as violations
from planc.lower.passes.drop_trivial_dims import drop_trivial_dims
from planc.verify.recipe import (
    CORPUS,
    DECAY_STEPS,
    LOWEST_EPS,
    MAX_MICRO_BATCH,
    MAX_MICRO_STEPS,
    MAX_WARMUP_STEPS,
    SCHEDULE_STEPS,
    SEQUENCE_LENGTH,
    Recipe,
    raised_rate,
)
from planc.verify.stages import without_pipeline
from planc.verify.twin import Renaming
from planc.vocab import MeshDim

SAVE_STEP = 2
"""The step of the save, of the three that are run: the step after it runs again on another mesh."""


def shrunk_graph(
    graph: Graph,
    build: ops.BuildModel,
    renamed: Renaming,
    sizes: Mapping[MeshDim, int],
    recipe: Recipe,
    *,
    vocab_size: int,
) -> Graph:
    """The graph with small numbers and few names."""
    small = replace(graph, mesh=tuple(sizes.items()))
    times = min(MAX_MICRO_STEPS, *(op.times for op in graph.step if isinstance(op, ops.Accumulate)))
    setup: list[Any] = []
    for op in graph.setup:
        match op:
            case ops.InitMesh():
                setup.append(replace(op, sizes=small.mesh, backend="gloo", timeout_seconds=60))
            case ops.BuildModel():
                setup.append(build)
            case ops.LoadWeights():
                setup.append(ops.InitWeights(seed=op.seed, span=op.span))
            case ops.BuildOptimizer():
                setup.append(_steadied(_renamed(op, renamed)))
            case ops.BuildSchedule():
                warmup = min(op.warmup_steps, MAX_WARMUP_STEPS)
                decay = None if op.decay_steps is None else DECAY_STEPS
                short = replace(op, warmup_steps=warmup, decay_steps=decay, num_steps=SCHEDULE_STEPS)
                setup.append(short)
            case ops.OpenData():
                setup.append(_short_data(op, times=times * small.dp_size, vocab_size=vocab_size))
            case ops.ResumeCheckpoint() | ops.OpenEvaluation() | ops.OpenLog() | ops.AttachDropout():
                continue
            case ops.CountExperts() | ops.OpenSource():
                continue
            case _:
                setup.append(_renamed(op, renamed))
    # Evaluations, traces and the timing of saves do not affect training.
    profile = (ops.StartProfile, ops.StopProfile)
    left_out = (ops.Evaluate, ops.GuardStep, ops.CompareReplicas, *profile, ops.SettleSave)
    data = next(op for op in setup if isinstance(op, ops.OpenData))
    num_tokens = data.micro_batch * data.sequence_length // sizes.get(MeshDim.CP, 1)
    step = (_short_step(op, num_tokens=num_tokens) for op in graph.step if not isinstance(op, left_out))
    save = ops.SaveCheckpoint(every_steps=SAVE_STEP, at_end=False, keep_last=1)
    return _verified(
        replace(
            small,
            num_steps=SCHEDULE_STEPS,
            setup=tuple(op for op in setup if op is not None),
            step=tuple(step),
            save=(save,),
        )
    )


def _renamed(op: Any, renamed: Renaming) -> Any:
    """The op on the small model, in full precision; None if nothing is left to do."""
    match op:
        case (
            ops.ShardTensorParallel() | ops.ShareHeads() | ops.CheckpointActivations() | ops.CompileModules()
        ):
            modules = renamed.of(op.modules)
            return replace(op, modules=modules) if modules else None
        case ops.FullyShard():
            groups = tuple(group for group in map(renamed.of, op.groups) if group)
            return replace(op, groups=groups, param_dtype=None, reduce_dtype=None) if groups else None
        case ops.PrefetchUnits():
            return replace(op, units=renamed.of(op.units))
        case ops.SplitPipeline():
            return replace(op, deferred=renamed.of(op.deferred))
        case ops.BuildOptimizer():
            left = (replace(one, parameters=renamed.of(one.parameters)) for one in op.groups)
            return replace(op, groups=tuple(group for group in left if group.parameters))
        case _:
            return op


def _steadied(op: ops.BuildOptimizer) -> ops.BuildOptimizer:
    """The op with rates and an eps that are robust to rounding."""
    lr = raised_rate(op.lr, peak=op.lr)
    groups = tuple(replace(group, lr=raised_rate(group.lr, peak=op.lr)) for group in op.groups)
    eps = getattr(op.settings, "eps", None)
    settings: Any = op.settings if eps is None else replace(op.settings, eps=max(eps, LOWEST_EPS))
    return replace(op, lr=lr, settings=settings, groups=groups)


def _short_data(op: ops.OpenData, *, times: int, vocab_size: int) -> ops.OpenData:
    """The op with `times` micro-batches per step."""
    micro_batch = min(op.micro_batch, MAX_MICRO_BATCH)
    return replace(
        op,
        source=JsonLinesSource((CORPUS,)),
        tokenizer="bytes",
        end_of_document=None,
        held_out="",
        begin_of_document=None,
        sequence_length=min(SEQUENCE_LENGTH, op.sequence_length),
        vocab_size=vocab_size,
        micro_batch=micro_batch,
        global_batch=micro_batch * times,
    )


def _short_step(op: AnyOp, *, num_tokens: int) -> AnyOp:
    match op:
        case ops.Accumulate():
            body = tuple(_short_loss(one, num_tokens=num_tokens) for one in op.body)
            return replace(op, times=min(op.times, MAX_MICRO_STEPS), body=body)
        case ops.Log():
            return replace(op, every_steps=1)
        case _:
            return op


def _short_loss(op: Any, *, num_tokens: int) -> Any:
    """The op with several chunks where it has several."""
    if not isinstance(op, ops.ComputeLoss) or op.chunks == 1:
        return op
    return replace(op, chunks=gcd(op.chunks, num_tokens) if gcd(op.chunks, num_tokens) > 1 else num_tokens)


def _verified(graph: Graph) -> Graph:
    found = violations(graph)
    assert not found, f"bug in planc: after shrinking: {'; '.join(map(str, found))}"
    return graph


def resumed_elsewhere(graph: Graph) -> Graph:
    """The graph of a run that resumes another's checkpoint: on its last mesh dim only, or on one rank."""
    wide = [mesh_dim for mesh_dim, size in graph.mesh if size > 1]
    kept = wide[-1:] if len(wide) > 1 else []
    mesh = tuple((mesh_dim, size if mesh_dim in kept else 1) for mesh_dim, size in graph.mesh)
    small = replace(graph, mesh=mesh)
    fewer = graph.dp_size // small.dp_size
    setup = [replace(op, sizes=mesh) if isinstance(op, ops.InitMesh) else op for op in graph.setup]
    step = [
        replace(op, times=op.times * fewer) if isinstance(op, ops.Accumulate) else op for op in graph.step
    ]
    resume = ops.ResumeCheckpoint(policy="latest")
    found = replace(small, setup=(*setup, resume), step=tuple(step), save=())
    if found.size(MeshDim.PP) == 1:
        found = without_pipeline(found)
    return _verified(drop_trivial_dims(found))


def with_clip(graph: Graph, max_norm: float | None) -> Graph:
    """The graph with another maximum norm."""
    step = (replace(op, max_norm=max_norm) if isinstance(op, ops.ClipGradients) else op for op in graph.step)
    return replace(graph, step=tuple(step))
