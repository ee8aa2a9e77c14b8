"""Rewrite a graph for a small model on few ranks: its ops and their order stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import gcd, prod
from typing import Any, cast

from torch import nn
from transformers.pytorch_utils import Conv1D

from planc.graph import ops
from planc.graph.graph import AnyOp, Graph
from planc.graph.ops import Accumulate, OpenData, Rows, SplitPipeline
from planc.graph.pipeline import pipeline_of
from planc.graph.verify import verify as violations
from planc.lower.evaluating import without_pipeline
from planc.lower.passes.drop_trivial_dims import drop_trivial_dims
from planc.modeling.head_counts import Heads, widths_by_heads
from planc.optimizers.muon import Muon
from planc.pipelining.simulate import equal_step
from planc.plan.spec import PipelineSpec
from planc.plan.stages import orders
from planc.verify.losses import LOWEST_TEMPERATURE, SMALL_GROUP
from planc.verify.recipe import (
    DECAY_STEPS,
    HIGHEST_EMA_DECAY,
    MAX_MICRO_BATCH,
    MAX_MICRO_STEPS,
    MAX_RANKS,
    MAX_WARMUP_STEPS,
    SCHEDULE_STEPS,
    SEQUENCE_LENGTH,
    Recipe,
    given_tokens,
    patience,
    raised_rate,
    robust,
    short_data,
)
from planc.verify.twin import Renaming
from planc.vocab import DType, MeshDim, PackedShard, Placement


def resized(graph: Graph, model: Any) -> Graph:
    """The graph with the widths of a model's fused projections, and its number of heads."""
    num_heads = getattr(model.config, "num_attention_heads", None) or 1
    heads = num_heads, getattr(model.config, "num_key_value_heads", None) or num_heads
    # A small model whose ranks replicate key/value heads has one of them.
    copies = graph.size(MeshDim.TP)
    return replace(graph, setup=tuple(_resized(op, model, heads, copies=copies) for op in graph.setup))


def _resized(op: Any, model: nn.Module, heads: Heads, *, copies: int) -> Any:
    match op:
        case ops.ShardTensorParallel():
            module = model.get_submodule(op.modules[0])
            shapes = {name: parameter.shape for name, parameter in module.named_parameters(recurse=False)}
            placed = ((name, _repacked(one, shapes.get(name), heads)) for name, one in op.parameters)
            rows = _rows(op.rows, module, heads, copies=copies) if op.rows else None
            return replace(op, parameters=tuple(placed), rows=rows)
        case ops.BuildOptimizer():
            num_rows = {
                name: weight.shape[-2] for name, weight in model.named_parameters() if weight.ndim > 1
            }
            return replace(op, groups=tuple(_with_rows(group, num_rows, heads) for group in op.groups))
        case ops.QuantizeBase():
            inputs = (cast(nn.Linear, model.get_submodule(fqn)).in_features // copies for fqn in op.modules)
            return replace(op, block=gcd(op.block, *inputs))
        case ops.ShareHeads():
            arguments = tuple(replace(argument, num_heads=heads[0]) for argument in op.arguments)
            return replace(op, arguments=arguments, copies=copies if op.copies > 1 else 1)
        case ops.BalanceExperts():
            sized = ((r, e, _num_experts(model.get_submodule(e)), bias) for r, e, _, bias in op.layers)
            return replace(op, layers=tuple(sized))
        case _:
            return op


def _with_rows(group: ops.ParameterGroup, rows: Mapping[str, int], heads: Heads) -> ops.ParameterGroup:
    """The rows of each part of smaller matrices: of two that are equal, or of queries, keys and values."""
    if not isinstance(group, ops.MatrixGroup):
        return group
    fused = []
    for fqn, widths in group.widths:
        parts = (rows[fqn] // 2,) * 2 if len(widths) == 2 else widths_by_heads(rows[fqn], heads)
        assert parts is not None, "the small model has the large one's parts"
        fused.append((fqn, parts))
    return replace(group, widths=tuple(fused))


def _num_experts(experts: nn.Module) -> int:
    return next(len(parameter) for parameter in experts.parameters() if parameter.ndim == 3)


def _rows(rows: Rows, module: nn.Module, heads: Heads, *, copies: int) -> Rows:
    """A rank's part of a smaller layer's keys and values, and of queries before them."""
    features = module.nf if isinstance(module, Conv1D) else cast(nn.Linear, module).out_features
    widths = widths_by_heads(features, (heads[0], 1)) if len(rows.parts) > 1 else (features,)
    assert widths is not None, "the small model has the large one's parts"
    repeats = (1 if number == 1 else copies for _, number in rows.parts)
    return Rows(tuple(zip(widths, repeats, strict=True)))


def _repacked(placement: Placement, shape: tuple[int, ...] | None, heads: Heads) -> Placement:
    """A placement with the widths of queries, keys and values: planc knows of no others that differ."""
    if not isinstance(placement, PackedShard) or shape is None:
        return placement
    widths = widths_by_heads(shape[placement.tensor_dim], heads)
    return replace(placement, widths=widths) if widths is not None else placement


def num_small_stages(graph: Graph) -> int:
    """Stages on few ranks of pp, as many on each as in the graph; 1 without a pipeline."""
    found = pipeline_of(graph)
    if found is None:
        return 1
    return found.num_stages // found.num_ranks * min(found.num_ranks, MAX_RANKS)


def in_small_stages(
    graph: Graph,
    pipeline: PipelineSpec | None,
    layers: tuple[str, ...],
    *,
    sizes: Mapping[MeshDim, int],
    hidden_size: int,
    dtype: DType,
) -> Graph:
    """The graph with even stages of these layers, and the order of few micro-batches."""
    data = next(op for op in graph.setup if isinstance(op, OpenData))
    number = num_small_stages(graph)
    times = min(next(op.times for op in graph.step if isinstance(op, Accumulate)), MAX_MICRO_STEPS)
    found = () if pipeline is None else orders(pipeline, num_ranks=sizes[MeshDim.PP], num_micro_batches=times)

    def small(op: Any) -> Any:
        match op:
            case SplitPipeline():
                length = min(SEQUENCE_LENGTH, data.sequence_length) // sizes[MeshDim.CP]
                if op.shape[1] < data.sequence_length // graph.size(MeshDim.CP):
                    length //= sizes[MeshDim.TP]
                shape = min(op.shape[0], MAX_MICRO_BATCH), length, hidden_size
                stages = _even_stages(op, layers, number=number)
                max_sends = equal_step(found, num_stages=number).max_sends
                return replace(op, stages=stages, shape=shape, dtype=dtype, max_sends=max_sends)
            case Accumulate() if op.orders:
                return replace(op, orders=found)
            case _:
                return op

    return replace(graph, setup=tuple(map(small, graph.setup)), step=tuple(map(small, graph.step)))


def _even_stages(op: SplitPipeline, layers: tuple[str, ...], *, number: int) -> tuple[tuple[str, ...], ...]:
    """Stages of these layers; what precedes and follows all layers stays where it is."""
    before, after = (
        tuple(name for name in stage if not name.startswith(f"{op.blocks}."))
        for stage in (op.stages[0], op.stages[-1])
    )
    ends = [len(layers) * stage // number for stage in range(number + 1)]
    first, *inner, last = (layers[start:end] for start, end in pairwise(ends))
    return ((*before, *first), *inner, (*last, *after))


SAVE_STEP = 2
"""The step of the save, of the three that are run: the step after it runs again on another mesh."""
_READERS = (ops.ReadGradients, ops.ReadStep, ops.ReadEvaluations, ops.AgreeToStop)
_LEFT_OUT = (
    *(ops.ResumeCheckpoint, ops.OpenEvaluation, ops.OpenLog, ops.AttachDropout, ops.CountExperts),
    *(ops.OpenSource, ops.NameBase, ops.BranchRun, ops.LoadReaders),
)
"""Ops of setup that the small run has no use for."""


def _is_run(op: AnyOp) -> bool:
    return not isinstance(op, _LEFT_OUT) and not (isinstance(op, ops.ComputeReference) and op.label)


def shrunk_graph(
    graph: Graph,
    build: ops.BuildModel,
    renamed: Renaming,
    sizes: Mapping[MeshDim, int],
    recipe: Recipe,
    *,
    vocab_size: int,
    padding: int | None = None,
    start: int | None = None,
) -> Graph:
    """The graph with small numbers and few names, and the padding and first token of the small model."""
    small = replace(graph, mesh=tuple(sizes.items()))
    times = min(MAX_MICRO_STEPS, *(op.times for op in graph.step if isinstance(op, ops.Accumulate)))
    setup: list[Any] = []
    for op in filter(_is_run, graph.setup):
        match op:
            case ops.InitMesh():
                setup.append(replace(op, sizes=small.mesh, backend="gloo", timeout_seconds=patience(graph)))
            case ops.BuildModel():
                setup.append(build)
            case ops.LoadWeights():
                setup.append(ops.InitWeights(seed=op.seed, span=op.span))
            case ops.LoadImageEncoder():
                setup.append(replace(op, path=build.path, strip=None, dtype=build.dtype))
            case ops.BuildOptimizer():
                setup.append(_steadied(_renamed(op, renamed), recipe))
            case ops.BuildSchedule():
                warmup = min(op.warmup_steps, MAX_WARMUP_STEPS)
                decay = None if op.decay_steps is None else DECAY_STEPS
                short = replace(op, warmup_steps=warmup, decay_steps=decay, num_steps=SCHEDULE_STEPS)
                setup.append(short)
            case ops.OpenData():
                given = given_tokens(op, recipe, padding=padding, start=start)
                setup.append(short_data(given, recipe, times * small.dp_size, vocab_size))
            case ops.BalanceExperts():
                whole = _data(graph.setup)
                setup.append(_short_balance(_renamed(op, renamed), whole=whole, small=_data(setup)))
            case ops.ShardExperts():
                setup.append(_renamed(replace(op, size=_small_ep(op, sizes)), renamed))
            case _:
                setup.append(_renamed(op, renamed))
    # Evaluations, traces and the timing of saves do not affect training.
    profile = (ops.StartProfile, ops.StopProfile)
    evaluations = (ops.Evaluate, ops.JudgeEvaluations)
    left_out = (*evaluations, *_READERS, ops.GuardStep, ops.CompareReplicas, *profile, ops.SettleSave)
    data = _data(setup)
    num_tokens = data.micro_batch * data.sequence_length // sizes.get(MeshDim.CP, 1)
    kept = (op for op in graph.step if not isinstance(op, left_out))
    step = (_short_step(op, recipe, num_tokens=num_tokens) for op in kept)
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


def _small_ep(op: ops.ShardExperts, sizes: Mapping[MeshDim, int]) -> int:
    """The most ranks that can have different experts on a smaller mesh, of no more than in the graph."""
    ranks = prod(sizes[mesh_dim] for mesh_dim in op.over)
    return next(size for size in range(op.size, 0, -1) if ranks % size == 0)


def _renamed(op: Any, renamed: Renaming) -> Any:
    """The op on the small model, in full precision; None if nothing is left to do."""
    match op:
        case ops.AttachAdapters(modules=own, stacked=stacks):
            return replace(op, modules=renamed.of(own), stacked=renamed.of(stacks), dropout=0.0, dtype=None)
        case (
            ops.InitAdapters()
            | ops.ShardTensorParallel()
            | ops.QuantizeBase()
            | ops.ShareHeads()
            | ops.ShardExperts()
            | ops.CapExperts()
            | ops.CheckpointActivations()
            | ops.CompileModules()
        ):
            modules = renamed.of(op.modules)
            return replace(op, modules=modules) if modules else None
        case ops.FullyShard():
            groups = tuple(group for group in map(renamed.of, op.groups) if group)
            return replace(op, groups=groups, param_dtype=None, reduce_dtype=None) if groups else None
        case ops.FreezeParameters():
            parameters = renamed.of(op.parameters)
            return replace(op, parameters=parameters) if parameters else None
        case ops.BalanceExperts():
            found = [(renamed.of((*of[:2], *filter(None, of[3:]))), of[2]) for of in op.layers]
            layers: Any = tuple((*names[:2], n, "".join(names[2:])) for names, n in found if names)
            return replace(op, layers=layers)
        case ops.PrefetchUnits():
            return replace(op, units=renamed.of(op.units))
        case ops.SplitPipeline():
            return replace(op, deferred=renamed.of(op.deferred))
        case ops.BuildOptimizer():
            left = (_renamed_group(group, renamed) for group in op.groups)
            return replace(op, groups=tuple(group for group in left if group.parameters))
        case _:
            return op


def _renamed_group(group: ops.ParameterGroup, renamed: Renaming) -> ops.ParameterGroup:
    small = replace(group, parameters=renamed.of(group.parameters))
    if not isinstance(small, ops.MatrixGroup):
        return small
    fused = ((name, widths) for large, widths in small.widths for name in renamed.of((large,)))
    return replace(small, widths=tuple(fused))


def _steadied(op: ops.BuildOptimizer, recipe: Recipe) -> ops.BuildOptimizer:
    """The op with rates, an eps and iterations that are robust to rounding."""
    lr = raised_rate(op.lr, peak=op.lr)
    groups = tuple(replace(group, lr=raised_rate(group.lr, peak=op.lr)) for group in op.groups)
    return replace(op, lr=lr, settings=_robust(op.settings, recipe), groups=groups)


def _robust(settings: Any, recipe: Recipe) -> Any:
    if isinstance(settings, Muon):
        return replace(settings, rest=_robust(settings.rest, recipe), ns_dtype=cast(Any, recipe.dtype))
    return robust(settings, recipe.loss)


def _data(setup: Iterable[Any]) -> OpenData:
    return next(op for op in setup if isinstance(op, OpenData))


def _short_balance(op: ops.BalanceExperts, *, whole: OpenData, small: OpenData) -> ops.BalanceExperts:
    """The op with sets of a sequence, of a micro-batch or of a step, as it has them."""
    sizes = {whole.global_batch: small.global_batch, whole.micro_batch: small.micro_batch, 1: 1}
    loss = op.loss and replace(op.loss, num_sequences=sizes[op.loss.num_sequences])
    return replace(op, loss=loss, num_sequences=small.global_batch)


def _short_step(op: AnyOp, recipe: Recipe, *, num_tokens: int) -> AnyOp:
    match op:
        case ops.Accumulate():
            body = tuple(_short_loss(one, recipe, num_tokens=num_tokens) for one in op.body)
            return replace(op, times=min(op.times, MAX_MICRO_STEPS), body=body)
        case ops.Log():
            return replace(op, every_steps=1)
        case ops.UpdateAverages():
            return replace(op, ema_decay=min(op.ema_decay, HIGHEST_EMA_DECAY))
        case _:
            return op


def _short_loss(op: Any, recipe: Recipe, *, num_tokens: int) -> Any:
    """The op with several chunks where it has several, with small groups and with small images."""
    if isinstance(op, ops.EncodeImages):
        assert recipe.data.images is not None, "the small model sees images too"
        return replace(op, token=recipe.data.images.token, shape=recipe.data.images.shape)
    if isinstance(op, ops.ComputeContrastiveLoss):
        return replace(op, group=SMALL_GROUP, temperature=max(op.temperature, LOWEST_TEMPERATURE))
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
    # The experts of a step that is balanced as a whole must see it in one micro-batch.
    rows = fewer if _is_balanced_whole(graph) else 1
    setup = [_on_fewer(op, mesh, rows=rows) for op in graph.setup]
    step = [
        replace(op, times=op.times * fewer // rows) if isinstance(op, ops.Accumulate) else op
        for op in graph.step
    ]
    resume = ops.ResumeCheckpoint(policy="latest")
    found = replace(small, setup=(*setup, resume), step=tuple(step), save=())
    if found.size(MeshDim.PP) == 1:
        found = without_pipeline(found)
    return _verified(drop_trivial_dims(found))


def _is_balanced_whole(graph: Graph) -> bool:
    found = (op for op in graph.setup if isinstance(op, ops.BalanceExperts))
    return any(op.loss is not None and op.loss.num_sequences == op.num_sequences for op in found)


def _on_fewer(op: AnyOp, mesh: tuple[tuple[MeshDim, int], ...], *, rows: int) -> AnyOp:
    match op:
        case ops.InitMesh():
            return replace(op, sizes=mesh)
        case OpenData():
            return replace(op, micro_batch=op.micro_batch * rows)
        case ops.ShardExperts():
            return replace(op, size=_small_ep(op, dict(mesh)))
        case _:
            return op
