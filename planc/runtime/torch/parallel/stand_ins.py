"""What a rank's forward of a stage runs in the places of modules that the stage lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from planc.graph.graph import Graph
from planc.graph.ops import OpenData, ShardTensorParallel, SplitPipeline
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES
from planc.styles.edges import SEQUENCE, normal
from planc.vocab import MeshDim

if TYPE_CHECKING:
    from planc.runtime.torch.parallel.pipeline import Pipeline

Shape = tuple[int, int, int]
"""[micro batch, sequence, hidden]"""


class PassOn(nn.Module):
    """In the place of a module of another stage: its output is its first input."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class NoLogits(nn.Module):
    """In the place of another stage's head: logits of no vocabulary."""

    def __init__(self, op: SplitPipeline, device: torch.device) -> None:
        super().__init__()
        self.weight = _no_weight(op, device)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[..., :0]


class NoEmbedding(nn.Module):
    """In the place of another stage's embedding: zeros, which the stage's first layer never sees."""

    def __init__(self, op: SplitPipeline, device: torch.device, *, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = _no_weight(op, device)

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros((), dtype=self.weight.dtype, device=ids.device).expand(self.shape)


def _no_weight(op: SplitPipeline, device: torch.device) -> Tensor:
    """For the code of models that asks a weight for its dtype or device."""
    return torch.empty(0, dtype=TORCH_DTYPES[op.dtype], device=device)


class Entrance(nn.Module):
    """In the place of the layer before a stage's first: gives what that layer's rank has sent."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        received = self.pipeline.now.received
        assert received is not None, "pipeline.receive precedes forward"
        return received


class Exit(nn.Module):
    """In the place of the layer after a stage's last: keeps what that layer's rank will get.

    The model's own code after its layers gets zeros for whole sequences: what gathers them in the last stage,
    a layer or a norm, is not in this one.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        self.pipeline.now.sent = hidden
        return torch.zeros((), dtype=hidden.dtype, device=hidden.device).expand(self.pipeline.whole)


def stand_ins(pipeline: Pipeline, graph: Graph, device: torch.device) -> Mapping[str, nn.Module]:
    """By module: what takes its place in the other stages."""
    op = pipeline.op
    on_shards = [
        name
        for tp in graph.setup
        if isinstance(tp, ShardTensorParallel) and normal(tp.use.output) == SEQUENCE
        for name in tp.modules
    ]
    pass_on = PassOn()
    # Each its own: one may hold a tied weight.
    embeddings = {}
    for name in op.stages[0]:
        if not name.startswith(f"{op.blocks}."):
            is_sharded = any(f"{one}.".startswith(f"{name}.") for one in on_shards)
            embeddings[name] = NoEmbedding(op, device, shape=op.shape if is_sharded else pipeline.whole)
    return {**dict.fromkeys(chain(*op.stages), pass_on), **embeddings, op.head: NoLogits(op, device)}


def edges(pipeline: Pipeline, stage: int, layers: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """What takes the places of the layers before and after a stage's own."""
    held = [index for index, name in enumerate(layers) if name in pipeline.op.stages[stage]]
    if stage > 0:
        yield layers[held[0] - 1], Entrance(pipeline)
    if not pipeline.is_last(stage):
        yield layers[held[-1] + 1], Exit(pipeline)


def whole_shape(graph: Graph, op: SplitPipeline) -> Shape:
    """As a stage's input on one rank of tp."""
    (data,) = (one for one in graph.setup if isinstance(one, OpenData))
    micro_batch, _, hidden = op.shape
    return micro_batch, data.sequence_length // graph.size(MeshDim.CP), hidden
