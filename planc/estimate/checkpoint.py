"""The size of a plan's checkpoint on disk, and in host memory while a thread writes it."""

from __future__ import annotations

from math import prod

from planc.estimate.layout import layouts
from planc.estimate.result import Amount, Saved
from planc.estimate.states import ON_HOST, averages
from planc.graph.graph import Graph
from planc.graph.ops import BuildOptimizer, JudgeEvaluations, NameBase, SaveCheckpoint
from planc.inventory.schema import Inventory


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
