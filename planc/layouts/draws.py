"""The layouts over tp of the tensors that dropout takes, from the layouts of the modules that reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.inventory.adapters import is_of_adapter
from planc.inventory.schema import Attention, Draw, Module, OwnHeads
from planc.layouts.flow import Flow
from planc.layouts.types import Signature, signature
from planc.plan.bind import BoundPlan
from planc.plan.divided_heads import attention_around, divided_heads
from planc.record import record
from planc.styles.edges import BATCH, FEATURES, SEQUENCE
from planc.vocab import (
    DropoutDim,
    PackedShard,
    Placement,
    Replicate,
    Shard,
    StridedShard,
    outwards,
    parent_of,
)


@record
class PlacedDraw:
    """A draw, and the layout of its tensor with the tensor's own dims; None where planc can't tell it."""

    draw: Draw
    layout: Placement | None


def placed_draws(bound: BoundPlan, flow: Flow) -> Iterator[tuple[Module, tuple[PlacedDraw, ...]]]:
    """Every module that drops something, in the model's order."""
    heads = {fqn: attention for attention, _ in divided_heads(bound) for fqn in (attention.fqn,)}
    gates = {fqn: signature(one) for fqn, one in bound.styles.items() if one.style.prepares}
    for module in bound.inventory.modules:
        if module.draws:
            setting = _Setting(bound, flow, gates, heads, module.fqn)
            yield module, tuple(PlacedDraw(draw, setting.layout(draw)) for draw in module.draws)


@record
class _Setting:
    """The plan around the draws of one module."""

    bound: BoundPlan
    flow: Flow
    gates: Mapping[str, Signature]
    """Containers that redistribute their input."""
    divided: Mapping[str, Attention | OwnHeads]
    """The attentions whose heads ranks share."""
    fqn: str

    def layout(self, draw: Draw) -> Placement | None:
        is_of_tokens = DropoutDim.TOKENS in draw.dims
        if not draw.dims or (is_of_tokens and self._is_routed()):
            return None
        if self.bound.plan.mesh.tp == 1 or not self.bound.styles:
            return Replicate()
        if draw.is_of_weights:
            return self._of_weights(draw)
        around = self.bound.styles.get(parent_of(self.fqn))
        if is_of_adapter(self.fqn) and around is not None:
            arriving: set[Placement | None] = {signature(around).computes_on}
        else:
            arriving = {self._arriving(source) for source in draw.sources} or {Replicate()}
        if len(arriving) > 1:
            return None
        match arriving.pop():
            case Replicate():
                return Replicate()
            case Shard() as shard if shard == SEQUENCE:
                return _along(draw, DropoutDim.TOKENS if is_of_tokens else DropoutDim.SEQUENCE)
            case Shard() as shard if shard == BATCH:
                return _along(draw, DropoutDim.BATCH)
            case Shard() as shard if shard == FEATURES and not self._is_packed(draw):
                last = len(draw.dims) - 1
                fixed = [index for index, dim in enumerate(draw.dims) if isinstance(dim, int)]
                return Shard(last) if fixed == [last] else None
            case _:
                return None

    def _of_weights(self, draw: Draw) -> Placement | None:
        """Attention weights: all heads, or a rank's."""
        known = {head.fqn: head for head in self.bound.inventory.known_heads}
        around = self.fqn if self.fqn in known else attention_around(self.fqn, known)
        if around is None:
            return None
        if around not in self.divided:
            return Replicate()
        lengths = [dim for dim in draw.dims if isinstance(dim, int)]
        return Shard(draw.dims.index(lengths[0])) if lengths == [known[around].num_heads] else None

    def _arriving(self, source: str) -> Placement | None:
        """The layout of a module's output where the draw takes it."""
        value = self.flow.leaving.get(source)
        layout = value.layout if value is not None else None
        for gate, using in self.gates.items():
            is_from, is_in = (f"{fqn}.".startswith(f"{gate}.") for fqn in (source, self.fqn))
            if is_from and not is_in and "output" in self.bound.styles[gate].style.options:
                layout = using.gives
            elif is_in and not is_from:
                layout = using.computes_on
        return layout

    def _is_packed(self, draw: Draw) -> bool:
        """Whether a rank's features are several runs of the tensor's."""
        for source in draw.sources:
            module, style = self.bound.inventory.get(source), self.bound.styles.get(source)
            packed = (StridedShard, PackedShard)
            if module is None or style is None or not module.is_linear:
                continue
            if isinstance(style.placement("weight"), packed) and module.out_features == draw.dims[-1]:
                return True
        return False

    def _is_routed(self) -> bool:
        """Whether experts around the module reorder its tokens."""
        around = (self.bound.inventory.get(fqn) for fqn in outwards(self.fqn))
        return any(module is not None and module.routing is not None for module in around)


def _along(draw: Draw, dim: DropoutDim) -> Placement | None:
    return Shard(draw.dims.index(dim)) if draw.dims.count(dim) == 1 else None
