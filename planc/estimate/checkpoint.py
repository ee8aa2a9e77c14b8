"""What a plan's checkpoint takes on disk."""

from __future__ import annotations

from math import prod

from planc.estimate.layout import layouts
from planc.graph.graph import Graph
from planc.inventory.schema import Inventory

_STEP_BYTES = 4


def checkpoint_bytes(graph: Graph, inventory: Inventory) -> int:
    """Bytes of the tensors in one checkpoint, every element once: parameters, both moments of AdamW in the
    same dtype, and a step counter for each parameter. The inventory must be of the graph's model.

    Headers and the manifest come on top: kilobytes for each rank.
    """
    found = layouts(graph, inventory)
    return sum(3 * prod(one.shape) * one.dtype.size_bytes + _STEP_BYTES for one in found)
