"""A rank's stages of a pipeline: the modules that it lacks pass on what they get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from planc.graph.ops import Accumulate, SplitPipeline
from planc.pipelining.order_text import parse_order
from planc.pipelining.orders import Action, rank_of
from planc.runtime.interpreter import Position
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES
from planc.vocab import MeshDim

if TYPE_CHECKING:
    from planc.runtime.torch.session import Session


@dataclass(slots=True)
class Hidden:
    """One micro-batch's hidden states at a stage; None where it has no neighbor."""

    received: Tensor | None = None
    sent: Tensor | None = None


@dataclass(slots=True)
class Pipeline:
    """The state of a rank's stages. Activations and gradients have channels apart: NCCL has no tags."""

    op: SplitPipeline
    num_ranks: int
    rank: int
    activations: ProcessGroup
    gradients: ProcessGroup
    now: Hidden = field(default_factory=Hidden)
    """Of the forward under way."""
    in_flight: dict[tuple[int, int], tuple[Hidden, Tensor | None]] = field(default_factory=dict)
    """By stage and micro-batch: its hidden states, and its loss if it has one."""
    gradient: Tensor | None = None
    """Of what the backward under way has sent."""
    sends: list[tuple[dist.Work, Tensor]] = field(default_factory=list)
    """Under way: a tensor must outlive its send."""

    @property
    def num_stages(self) -> int:
        return len(self.op.stages)

    @property
    def own(self) -> Sequence[int]:
        """The stages of this rank."""
        return range(self.rank, self.num_stages, self.num_ranks)

    def owns(self, name: str) -> bool:
        """Whether a parameter belongs to this rank's stages."""
        own = (module for stage in self.own for module in self.op.stages[stage])
        return any(name.startswith(f"{module}.") for module in own)

    def is_last(self, stage: int) -> bool:
        return stage == self.num_stages - 1

    def finish_forward(self, position: Position, *, loss: Tensor | None = None) -> None:
        """Keep what the backward of this micro-batch needs."""
        self.in_flight[position.stage, position.micro_step] = self.now, loss

    def begin_backward(self, position: Position) -> Tensor | None:
        """Take it back; the loss, at the last stage."""
        self.now, loss = self.in_flight.pop((position.stage, position.micro_step))
        return loss

    def new_hidden(self, device: torch.device) -> Tensor:
        """For a message: [micro batch, local sequence, hidden]."""
        return torch.empty(self.op.shape, dtype=TORCH_DTYPES[self.op.dtype], device=device)


class PassOn(nn.Module):
    """In the place of a module of another stage: its output is its first input."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class NoLogits(nn.Module):
    """In the place of another stage's head: logits of no vocabulary."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[..., :0]


class NoEmbedding(nn.Module):
    """In the place of another stage's embedding: zeros, which the stage's first layer never sees."""

    def __init__(self, op: SplitPipeline) -> None:
        super().__init__()
        self.op = op

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> Tensor:
        zero = torch.zeros((), dtype=TORCH_DTYPES[self.op.dtype], device=ids.device)
        return zero.expand(self.op.shape)


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
    """In the place of the layer after a stage's last: keeps what that layer's rank will get."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        self.pipeline.now.sent = hidden
        return hidden


def split_pipeline(session: Session, op: SplitPipeline, position: Position) -> None:
    """Replace the modules of other stages, so their parameters never exist on this rank."""
    (pp,) = op.over
    mesh = session.submesh(pp)
    pipeline = Pipeline(
        op=op,
        num_ranks=session.graph.size(pp),
        rank=mesh.get_local_rank(),
        activations=mesh.get_group(),
        gradients=_second_group(session, pp),
    )
    session.pipeline = pipeline
    own = {name for stage in pipeline.own for name in op.stages[stage]}
    replacements = _replacements(pipeline, own)
    for name, module in replacements.items():
        parent, _, child = name.rpartition(".")
        setattr(session.model.get_submodule(parent), child, module)


def _second_group(session: Session, pp: MeshDim) -> ProcessGroup:
    """Another group of this rank's pp neighbors; every rank makes those of all."""
    columns = session.mesh.mesh.movedim(list(session.mesh.mesh_dim_names or ()).index(pp.value), -1)
    found, _ = dist.new_subgroups_by_enumeration(columns.reshape(-1, columns.shape[-1]).tolist())
    return found


def _replacements(pipeline: Pipeline, own: set[str]) -> Mapping[str, nn.Module]:
    """By module: what takes its place."""
    op = pipeline.op
    layers = [name for name in chain(*op.stages) if name.startswith(f"{op.blocks}.")]
    return dict(_replaced(pipeline, own, layers))


def _replaced(pipeline: Pipeline, own: set[str], layers: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    op = pipeline.op
    held = [index for index, name in enumerate(layers) if name in own]
    for index, name in enumerate(layers):
        if index + 1 == held[0]:
            yield name, Entrance(pipeline)
        elif index - 1 == held[-1]:
            yield name, Exit(pipeline)
        elif name not in own:
            yield name, PassOn()
    first, last = set(op.stages[0]) - set(layers), set(op.stages[-1]) - set(layers)
    for name in sorted((first | last) - own):
        yield name, _stand_in(name, op, is_first=name in first)


def _stand_in(name: str, op: SplitPipeline, *, is_first: bool) -> nn.Module:
    if name == op.head:
        return NoLogits()
    return NoEmbedding(op) if is_first else PassOn()


def order_of(session: Session, op: Accumulate) -> Sequence[Action]:
    """What this rank runs in a step of a pipeline; empty without one."""
    return parse_order(op.orders[session.coordinate(MeshDim.PP)]) if op.orders else ()


def owner(pipeline: Pipeline, stage: int) -> int:
    """The pp rank of a stage."""
    return rank_of(stage, num_ranks=pipeline.num_ranks)
