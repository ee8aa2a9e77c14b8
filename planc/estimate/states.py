"""Parameters, gradients and optimizer state, exact from the local shapes, and the size of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from planc.estimate import muon
from planc.estimate.layout import ParameterLayout, layouts
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Amount, Saved
from planc.graph.graph import Graph
from planc.graph.ops import BuildAverages, BuildOptimizer, JudgeEvaluations, NameBase, SaveCheckpoint
from planc.inventory.schema import Inventory
from planc.optimizers.optimizer import STEP_BYTES, OptimizerKind

ON_HOST = ", in host memory"


def num_local_parameters(work: RankWork) -> int:
    """Elements of rank 0's shards."""
    return sum(prod(layout.local_shape) for layout in work.layouts.values())


def states(work: RankWork) -> tuple[Amount, ...]:
    """Parameters, optimizer, gradients of one step before they are freed, and averages if there are any."""
    place = ON_HOST if work.offloads else ""
    return (
        _stored("parameters", work.layouts, place),
        _optimizer(work, place=place),
        _stored("gradients", work.with_gradients, place),
        *_averages(work, place),
    )


def averages(graph: Graph, layouts: Iterable[ParameterLayout]) -> Mapping[str, int]:
    """The bytes of an element of each average that a plan keeps, by parameter."""
    if not any(isinstance(op, BuildAverages) for op in graph.setup):
        return {}
    return {layout.fqn: max(4, layout.dtype.size_bytes) for layout in layouts if not layout.is_frozen}


def _averages(work: RankWork, place: str) -> Iterator[Amount]:
    kept = averages(work.graph, work.layouts.values())
    elements: Counter[int] = Counter()
    for fqn, size in kept.items():
        elements[size] += prod(work.layouts[fqn].local_shape)
    if kept:
        formula = " + ".join(f"{number:_} elements x {size} bytes" for size, number in elements.items())
        num_bytes = sum(size * number for size, number in elements.items())
        source = "planc/runtime/torch/training/averages.py"
        yield Amount("averages", num_bytes, True, f"{formula}{place}", source)


def _stored(name: str, layouts: Mapping[str, ParameterLayout], place: str) -> Amount:
    elements: Counter[str] = Counter()
    for layout in layouts.values():
        elements[layout.stored_as] += prod(layout.local_shape)
    terms = (f"{number:_} elements x {dtype}" for dtype, number in elements.items())
    stored = sum(layout.local_bytes for layout in layouts.values())
    return Amount(name, stored, True, " + ".join(terms) + place, "local shapes")


def _optimizer(work: RankWork, *, place: str) -> Amount:
    """Saving makes the state of parameters that no gradient reaches, if they are not frozen."""
    trained, kinds = _trained(work), _kinds(work)
    by_kind: dict[OptimizerKind, list[ParameterLayout]] = {}
    for layout in trained:
        by_kind.setdefault(kinds[layout.fqn], []).append(layout)
    what = "parameters" if len(trained) == len(work.layouts) else "parameters that are not frozen"
    formulas, sources, num_bytes = [], [], 0
    for kind, members in by_kind.items():
        whose = what if len(by_kind) == 1 else f"{len(members):_} parameters"
        kept = list(map(str, kind.kept(2)))
        formula = f"{len(kept)} x {whose}" if set(kept) <= set(kind.state_names) else _terms(kind, members)
        if kind.has_step_counter:
            formula += f" + {STEP_BYTES} x {len(members):_} step counters"
            kept.append("step")
        num_bytes += sum(_state_bytes(kind, layout) for layout in members)
        formulas.append(formula)
        sources.append(f"{kind.module}.{kind.torch_class}: {', '.join(kept) or 'no state'}")
    return Amount("optimizer", num_bytes, True, f"{' + '.join(formulas)}{place}", "; ".join(sources))


def _terms(kind: OptimizerKind, members: Sequence[ParameterLayout]) -> str:
    """Elements by the dtype that they are stored in."""
    elements: Counter[str] = Counter()
    for layout in members:
        for kept in kind.kept(len(layout.shape)):
            elements[kept.dtype or layout.dtype] += prod(kept.shape(layout.local_shape))
    return " + ".join(f"{number:_} elements x {dtype}" for dtype, number in elements.items())


def _trained(work: RankWork) -> list[ParameterLayout]:
    return [layout for layout in work.layouts.values() if not layout.is_frozen]


def _kinds(work: RankWork) -> Mapping[str, OptimizerKind]:
    """The optimizer of each parameter, and of the copies that another stage of a pipeline has."""
    kinds = work.optimizer.settings_by_parameter()
    trained = (tie for tie in work.ties if tie[0] in kinds)
    return {**kinds, **{copy: kinds[first] for first, *copies in trained for copy in copies}}


def _state_bytes(kind: OptimizerKind, layout: ParameterLayout) -> int:
    return kind.state_bytes(layout.local_shape, element=layout.dtype.size_bytes)


def moved_bytes(work: RankWork) -> int:
    """Bytes that a step of the optimizer moves for an element: gradients once, parameters and state twice."""
    trained, kinds = _trained(work), _kinds(work)
    states = sum(_state_bytes(kinds[layout.fqn], layout) for layout in trained)
    moved = 3 * sum(layout.local_bytes for layout in trained) + 2 * states
    if kept := averages(work.graph, trained):
        # They are read and written, and weights are read once more.
        moved += sum(
            2 * kept[layout.fqn] * prod(layout.local_shape) + layout.local_bytes for layout in trained
        )
    return round(moved / (sum(prod(layout.local_shape) for layout in trained) or 1))


def update_bytes(work: RankWork) -> int:
    """The peak of the optimizer's temporary tensors: for a whole group, or for one parameter."""
    op = work.optimizer
    of_rounds, kinds = muon.round_bytes(work), _kinds(work)
    alone = (
        kinds[fqn].update_bytes(layout.local_shape, element=layout.dtype.size_bytes)
        for fqn, layout in work.with_gradients.items()
    )
    sizes = {fqn: layout.local_bytes for fqn, layout in work.with_gradients.items()}
    at_once = max if op.implementation_on("cuda") == "for_loop" else sum
    return max(
        of_rounds,
        *alone,
        *(
            op.num_copies(group) * at_once([sizes[fqn] for fqn in group.parameters if fqn in sizes] or [0])
            for group in op.groups
        ),
    )


def saved(graph: Graph, inventory: Inventory) -> Saved:
    """Bytes of the tensors in one checkpoint, every element once: parameters that it does not leave out, the
    optimizer's states in the same dtype, its step counters, and averages, if it has any. The inventory must
    be of the graph's model.

    Headers and the manifest come on top: kilobytes for each rank.
    """
    optimizer = next(op for op in graph.setup if isinstance(op, BuildOptimizer))
    kinds = optimizer.settings_by_parameter()
    left_out = {name for op in graph.setup if isinstance(op, NameBase) for name in op.parameters}
    num_bytes = left_out_bytes = 0
    stored = tuple(layouts(graph, inventory))
    averaged = averages(graph, stored)
    for layout in stored:
        num_bytes += averaged.get(layout.fqn, 0) * prod(layout.shape)
        if layout.fqn in left_out:
            left_out_bytes += layout.total_bytes
        else:
            num_bytes += layout.total_bytes
        if not layout.is_frozen:
            element = layout.dtype.size_bytes
            num_bytes += kinds[layout.fqn].state_bytes(layout.shape, element=element)
    num_best = sum(op.keep_best for op in graph.step if isinstance(op, JudgeEvaluations))
    saves = (op for op in graph.save if isinstance(op, SaveCheckpoint))
    at_once = sum(_at_once(op, graph.num_steps, num_best=num_best) for op in saves)
    return Saved(num_bytes, left_out_bytes, at_once, num_best if at_once else 0)


def _at_once(op: SaveCheckpoint, num_steps: int, *, num_best: int) -> int:
    """Return the number of checkpoints at one time: a new one is committed before the oldest is deleted.

    Saves by time are taken to be many.
    """
    if op.every_seconds is not None:
        return op.keep_last + num_best + 1
    every = num_steps // op.every_steps if op.every_steps else 0
    is_extra = op.at_end and (op.every_steps is None or num_steps % op.every_steps != 0)
    return min(op.keep_last + num_best + 1, every + is_extra)


def checkpoint_bytes(graph: Graph, inventory: Inventory) -> int:
    """The size of one checkpoint: see `saved`."""
    return saved(graph, inventory).num_bytes


def staging(graph: Graph, inventory: Inventory) -> Amount:
    """The copies of an asynchronous save that a rank holds between saves; None for synchronous saves.

    All ranks together copy one checkpoint, each what it writes, and a tensor's replicas write in turn: this
    is the mean of the ranks.
    """
    saves = any(isinstance(op, SaveCheckpoint) and op.mode == "async" for op in graph.save)
    num_bytes = -(-checkpoint_bytes(graph, inventory) // graph.world_size) if saves else 0
    formula = f"a rank's part of a checkpoint{ON_HOST}"
    source = "planc/runtime/torch/checkpoint/background.py"
    return Amount("staged saves", num_bytes, False, formula, source)
