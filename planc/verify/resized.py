"""The sizes that a graph states of attentions, as those of a smaller model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch import nn
from transformers.pytorch_utils import Conv1D

from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.ops import Rows
from planc.modeling.head_counts import Heads, widths_by_heads
from planc.vocab import MeshDim, PackedShard, Placement


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
        case ops.ShareHeads():
            arguments = tuple(replace(argument, num_heads=heads[0]) for argument in op.arguments)
            return replace(op, arguments=arguments, copies=copies if op.copies > 1 else 1)
        case _:
            return op


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
