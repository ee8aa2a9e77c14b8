"""Rehearse a graph: every kind of rank through setup, two steps and a save, without computing or sending."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, CompileModules, FullyShard, ShardTensorParallel
from planc.graph.pipeline import pipeline_of
from planc.runtime.errors import OpFailure, RunError
from planc.runtime.rehearsal.findings import Failure, Measured, Rehearsal
from planc.runtime.rehearsal.measure import measure, rehearse_rank
from planc.runtime.rehearsal.stack import Stack, by_stage, rehearsed_stack
from planc.runtime.torch.weights.adapters import attach
from planc.runtime.torch.weights.build import meta_model
from planc.vocab import MeshDim, sharded_lengths

_COMPILED_HELP = "the rehearsal passes without `compile`: compile other modules, or none"


def rehearse(
    graph: Graph, *, base: Path, measured_stage: int = 0, report: Callable[[str], None] = lambda text: None
) -> Rehearsal:
    """Return the failures, and what one rank sends and holds. Relative paths are resolved against `base`.

    That is `measured_rank`, in a pipeline of the pp rank `measured_stage`. Runs in a process without a
    process group, and reports progress to `report`. Failures of the graph's ops are returned; RunError only
    if the model itself cannot be built.
    """
    (build,) = (op for op in graph.setup if isinstance(op, BuildModel))
    report("building the model")
    model = meta_model(build, base=base, runs_extensions=True)
    if graph.adapters is not None:
        attach(model, graph.adapters)
    stack, pipeline = rehearsed_stack(model, graph), pipeline_of(graph)
    whole: frozenset[str] = frozenset()
    if pipeline is not None:
        stack = by_stage(stack, pipeline.split)
        # All layers of the measured rank run: they are few, and those of two stages don't add the same.
        whole = frozenset(chain(*pipeline.split.stages[measured_stage :: pipeline.num_ranks]))
    to_measure = measured_rank(graph, stage=measured_stage)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    ranks = rehearsed_ranks(graph, _divided(graph, shapes))
    # Of compiled modules, shapes, layouts and collectives are those of the module.
    plain = replace(graph, setup=tuple(op for op in graph.setup if not isinstance(op, CompileModules)))
    failures: list[Failure] = []
    measured: Measured | None = None
    with warnings.catch_warnings():
        # Warnings of torch during a rehearsal appear again in the run.
        warnings.simplefilter("ignore")
        for place, rank in enumerate(ranks, start=1):
            report(f"rank {rank}, {place} of {len(ranks)}")
            try:
                if rank == to_measure:
                    run = stack if pipeline is None else Stack(())
                    measured, uncompiled = _measure(graph, plain, run, base=base, rank=rank)
                    failures.extend(uncompiled)
                else:
                    rehearse_rank(plain, rank, base=base, dropped=stack.all_but_one_of_each())
            except RunError as error:
                help = None if isinstance(error, OpFailure) else error.help
                failures.append(Failure(rank, error.message, error.span, help))
    num_layers = sum(len(kind.layers) for kind in stack.kinds)
    left_out = stack.dropped() if pipeline is None else stack.all_but_one_of_each() - whole
    num_rehearsed = num_layers - len(left_out)
    return Rehearsal(ranks, num_layers, num_rehearsed, tuple(failures), measured)


def _measure(
    graph: Graph, plain: Graph, stack: Stack, *, base: Path, rank: int
) -> tuple[Measured, tuple[Failure, ...]]:
    """Measure what a rank sends and holds; as if nothing were compiled, if only the compiled modules fail.

    `plain` is the graph without them. Their failure is returned, at the line that has them compiled.
    """
    try:
        return measure(graph, stack, base=base, rank=rank), ()
    except RunError as error:
        if plain == graph:
            raise
        measured = measure(plain, stack, base=base, rank=rank)
        span = next(op.span for op in graph.setup if isinstance(op, CompileModules))
        return measured, (Failure(rank, error.message, span, _COMPILED_HELP),)


def _divided(graph: Graph, shapes: dict[str, tuple[int, ...]]) -> dict[MeshDim, tuple[int, ...]]:
    """The lengths that are chunked over each mesh dim: FSDP shards dimension 0, over tp the styles decide."""
    lengths_by_dim: dict[MeshDim, set[int]] = {}
    for op in graph.setup:
        if isinstance(op, FullyShard):
            # Experts divide evenly over both factors of their mesh dim.
            for mesh_dim in (dim for dim in op.shard_over if isinstance(dim, MeshDim)):
                lengths_by_dim.setdefault(mesh_dim, set()).update(
                    shape[0] for shape in shapes.values() if shape
                )
        elif isinstance(op, ShardTensorParallel):
            for fqn in op.modules:
                lengths = _lengths(op, {name: shapes.get(f"{fqn}.{name}", ()) for name, _ in op.parameters})
                lengths_by_dim.setdefault(op.over[0], set()).update(lengths)
    return {mesh_dim: tuple(sorted(lengths)) for mesh_dim, lengths in lengths_by_dim.items()}


def _lengths(op: ShardTensorParallel, shapes: dict[str, tuple[int, ...]]) -> set[int]:
    return {
        length for name, placement in op.parameters for length in sharded_lengths(placement, shapes[name])
    }


def rehearsed_ranks(graph: Graph, divided: Mapping[MeshDim, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks in ascending order, rank 0 and the last among them.

    `divided` are the lengths that are chunked over each mesh dim. If all of them divide evenly, ranks
    along the dim hold blocks of equal shape; what else may differ, the chunks of a sequence, differs most
    between the first and the last rank. If one does not, the ranks where chunks become smaller differ too.
    Every rank of a pipeline has layers of its own.
    """
    sizes = dict(graph.mesh)
    first = dict.fromkeys(sizes, 0)
    places = [first, {mesh_dim: size - 1 for mesh_dim, size in sizes.items()}]
    places.extend(_measured_place(sizes, stage) for stage in range(sizes[MeshDim.PP]))
    for mesh_dim, lengths in divided.items():
        uneven = (place for length in lengths for place in _uneven_places(length, size=sizes[mesh_dim]))
        places.extend({**first, mesh_dim: place} for place in uneven)
    return tuple(sorted({_rank(sizes, place) for place in places}))


def measured_rank(graph: Graph, *, stage: int) -> int:
    """The rank of a pp rank that holds the most: over cp the last has the most blocks of keys before its
    queries, and elsewhere the first has no smaller chunk than others."""
    sizes = dict(graph.mesh)
    return _rank(sizes, _measured_place(sizes, stage))


def _measured_place(sizes: dict[MeshDim, int], stage: int) -> dict[MeshDim, int]:
    return {**dict.fromkeys(sizes, 0), MeshDim.PP: stage, MeshDim.CP: sizes[MeshDim.CP] - 1}


def _uneven_places(length: int, *, size: int) -> Iterator[int]:
    """The first place with the short chunk, the one after it, which may be empty, and the last."""
    if length % size:
        num_full = length // -(-length // size)
        yield from (place for place in (num_full, num_full + 1, size - 1) if place < size)


def _rank(sizes: dict[MeshDim, int], place: dict[MeshDim, int]) -> int:
    """Meshes are laid out with the last dim fastest."""
    rank = 0
    for mesh_dim, size in sizes.items():
        rank = rank * size + place[mesh_dim]
    return rank
