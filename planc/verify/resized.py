"""The sizes that a graph states of attentions, as those of a smaller model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from planc.graph import ops
from planc.graph.graph import Graph
from planc.modeling.head_counts import Heads, widths_by_heads
from planc.vocab import PackedShard, Placement


def resized(graph: Graph, model: Any) -> Graph:
    """The graph with the widths of a model's fused projections, and its number of heads."""
    num_heads = getattr(model.config, "num_attention_heads", None) or 1
    heads = num_heads, getattr(model.config, "num_key_value_heads", None) or num_heads
    return replace(graph, setup=tuple(_resized(op, model, heads) for op in graph.setup))


def _resized(op: Any, model: nn.Module, heads: Heads) -> Any:
    match op:
        case ops.ShardTensorParallel():
            module = model.get_submodule(op.modules[0])
            shapes = {name: parameter.shape for name, parameter in module.named_parameters(recurse=False)}
            placed = ((name, _repacked(one, shapes.get(name), heads)) for name, one in op.parameters)
            return replace(op, parameters=tuple(placed))
        case ops.ShareHeads():
            return replace(op, arguments=tuple(replace(one, num_heads=heads[0]) for one in op.arguments))
        case _:
            return op


def _repacked(placement: Placement, shape: tuple[int, ...] | None, heads: Heads) -> Placement:
    """A placement with the widths of queries, keys and values: planc knows of no others that differ."""
    if not isinstance(placement, PackedShard) or shape is None:
        return placement
    widths = widths_by_heads(shape[placement.tensor_dim], heads)
    return replace(placement, widths=widths) if widths is not None else placement
