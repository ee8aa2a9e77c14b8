"""Modules that a rank's forward of a stage runs in place of those that the stage lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from planc.graph.graph import Graph
from planc.graph.ops import OpenData, SplitPipeline
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.vocab import MeshDim

if TYPE_CHECKING:
    from planc.runtime.torch.parallel.pipeline import Pipeline


class PassOn(nn.Module):
    """A substitute for a module of another stage: its output is its first input."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class NoLogits(nn.Module):
    """A substitute for another stage's head: logits of no vocabulary."""

    def __init__(self, op: SplitPipeline, device: torch.device) -> None:
        super().__init__()
        self.weight = _no_weight(op, device)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[..., :0]


class NoEmbedding(nn.Module):
    """A substitute for another stage's embedding: zeros, which the stage's first layer never sees."""

    def __init__(self, op: SplitPipeline, device: torch.device, *, length: int) -> None:
        super().__init__()
        batch, _, hidden = op.shape
        self.shape = batch, length, hidden
        self.weight = _no_weight(op, device)

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros((), dtype=self.weight.dtype, device=ids.device).expand(self.shape)


def _no_weight(op: SplitPipeline, device: torch.device) -> Tensor:
    """A weight for the code of models that asks one for its dtype or device."""
    return torch.empty(0, dtype=TORCH_DTYPES[op.dtype], device=device)


class Entrance(nn.Module):
    """A substitute for the layer before a stage's first: gives what that layer's rank has sent."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        received = self.pipeline.now.received
        assert received is not None, "pipeline.receive precedes forward"
        return received


class Exit(nn.Module):
    """A substitute for the layer after a stage's last: keeps what to send to that layer's rank.

    The model's own code after its layers gets zeros of the last layer's shape: what gathers the sequence, or
    shards it, may be in the last stage alone.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        self.pipeline.now.sent = hidden
        return _blank(hidden, length=self.pipeline.lengths.of(self.pipeline.op.blocks))


class NoNorm(nn.Module):
    """A substitute for another stage's module after the layers: zeros for as many positions as it gives."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return _blank(hidden, length=self.length)


def _blank(hidden: Tensor, *, length: int) -> Tensor:
    batch, _, *features = hidden.shape
    return torch.zeros((), dtype=hidden.dtype, device=hidden.device).expand(batch, length, *features)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The positions of a rank's hidden states, whole and on shards of tp."""

    whole: int
    shard: int
    on_shards: tuple[str, ...]

    def of(self, name: str) -> int:
        """The length of a module's output."""
        return self.shard if name in self.on_shards else self.whole


def lengths_of(graph: Graph, op: SplitPipeline) -> Lengths:
    """The lengths of a graph's pipeline."""
    (data,) = (one for one in graph.setup if isinstance(one, OpenData))
    whole = data.sequence_length // graph.size(MeshDim.CP)
    return Lengths(whole, whole // graph.size(MeshDim.TP), op.on_shards)


def stand_ins(pipeline: Pipeline, device: torch.device) -> Mapping[str, nn.Module]:
    """The module that takes each one's place in the other stages."""
    op, lengths = pipeline.op, pipeline.lengths
    before, after = ([name for name in op.stages[end] if not _is_layer(name, op)] for end in (0, -1))
    # Each its own: one may hold a tied weight.
    embeddings = {name: NoEmbedding(op, device, length=lengths.of(name)) for name in before}
    norms = {name: NoNorm(lengths.of(name)) for name in after}
    passing = dict.fromkeys(chain(*op.stages), PassOn())
    return {**passing, **norms, **embeddings, op.head: NoLogits(op, device)}


def _is_layer(name: str, op: SplitPipeline) -> bool:
    return name.startswith(f"{op.blocks}.")


def edges(pipeline: Pipeline, stage: int, layers: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """The modules in the places of the layers before and after a stage's own."""
    held = [index for index, name in enumerate(layers) if name in pipeline.op.stages[stage]]
    if stage > 0:
        yield layers[held[0] - 1], Entrance(pipeline)
    if not pipeline.is_last(stage):
        yield layers[held[-1] + 1], Exit(pipeline)
