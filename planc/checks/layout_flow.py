"""The layout over tp in which activations leave and reach every module, along the recorded data flow.

A small type inference: `Replicate()`, `Shard(1)` (the sequence) and `Shard(-1)` (features, or whole heads)
are the types, styles are the signatures. A clash leaves its consumer's output unknown, and unknown agrees
with everything, so that one fault is found once and not again in every layer behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planc.checks.families import family
from planc.inventory.schema import Attention, Inventory, Kind, Module
from planc.plan.bind import Assignment, BoundPlan
from planc.styles import StyleUse
from planc.vocab import Placement, Replicate, Shard

WHOLE = Replicate()
SEQUENCE = Shard(1)
FEATURES = Shard(-1)


class ClashKind(StrEnum):
    """Which rule a clash belongs to."""

    FEATURES_STAY_DIVIDED = "features-stay-divided"
    FEATURES_NOT_DIVIDED = "features-not-divided"
    NORM_ON_SEQUENCE = "norm-on-sequence"
    NORM_ON_HEADS = "norm-on-heads"
    HEADS_PARTLY = "heads-partly"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Clash:
    """Something arrives at `consumer` as `arriving` where `needs` is due.

    `producers` gave it that layout. `partners` are what it meets there, when the clash is between values that
    are combined.
    """

    kind: ClashKind
    consumer: str
    needs: Placement
    arriving: Placement
    producers: tuple[str, ...]
    partners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A module's output: its layout (None where unknown), and the module that gave it that layout."""

    layout: Placement | None
    origin: str


@dataclass(frozen=True, slots=True)
class Flow:
    """The output of every recorded module, and what does not fit, in the order of computation.

    Modules that feed themselves, as a block that is called again, have no entry.
    """

    leaving: dict[str, Value]
    clashes: tuple[Clash, ...]


def layout_flow(bound: BoundPlan) -> Flow:
    """The flow of a plan's activations through its model."""
    attentions = {attention.fqn: attention for attention in bound.inventory.attentions}
    walk = _Walk(bound, gates=_gates(bound), attentions=attentions)
    for module in _in_data_order(bound.inventory):
        walk.leaving[module.fqn] = walk.output(module)
    return Flow(walk.leaving, tuple(dict.fromkeys(walk.clashes)))


def normal(placement: Placement) -> Placement:
    """The layout that a placement of [batch, sequence, features] means, by its usual name.

    After the view to heads, `Shard(2)` is whole heads, which are the same ranks' features.
    """
    if isinstance(placement, Shard):
        return {2: FEATURES, -2: SEQUENCE}.get(placement.tensor_dim, placement)
    return placement


def _gates(bound: BoundPlan) -> dict[str, StyleUse]:
    """Containers that redistribute what enters them."""
    return {
        fqn: assignment.use
        for fqn, assignment in bound.styles.items()
        if "desired" in assignment.style.options and not _module(bound.inventory, fqn).parameters
    }


def _in_data_order(inventory: Inventory) -> Iterator[Module]:
    """Recorded modules, each after everything that feeds it (Kahn's algorithm)."""
    feeds: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for module in inventory.modules:
        if module.parameters or module.returns or module.sources:
            needed = {fqn for fqn in (*module.sources, *module.returns) if fqn != module.fqn}
            waiting[module.fqn] = len(needed)
            for fqn in needed:
                feeds.setdefault(fqn, []).append(module.fqn)
    ready = [fqn for fqn, count in waiting.items() if count == 0]
    for fqn in ready:  # grows while it is read
        yield _module(inventory, fqn)
        for consumer in feeds.get(fqn, ()):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)


def _module(inventory: Inventory, fqn: str) -> Module:
    module = inventory.get(fqn)
    assert module is not None, f"{fqn} is a module of this inventory"
    return module


@dataclass(slots=True)
class _Walk:
    """The state of one pass over the model."""

    bound: BoundPlan
    gates: dict[str, StyleUse]
    attentions: dict[str, Attention]
    leaving: dict[str, Value] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)
    blamed: set[str] = field(default_factory=set)
    """Families already named in a clash: where values meet, the others decide."""

    def output(self, module: Module) -> Value:
        """How a module's output leaves it, its clashes noted."""
        if not module.parameters:
            return self._combined(module, module.returns, wanted=None)
        assignment = self.bound.styles.get(module.fqn)
        wanted = normal(assignment.use.input) if assignment else WHOLE
        incoming = self._combined(module, module.sources, wanted=wanted)
        clash = self._clash(module, incoming, wanted=wanted)
        if clash is not None:
            self.clashes.append(clash)
            self.blamed.update(self._family(fqn) for fqn in clash.producers)
            # A norm works token by token, so what follows it is laid out as if it were right.
            passes = clash.kind in (ClashKind.NORM_ON_SEQUENCE, ClashKind.NORM_ON_HEADS)
            return incoming if passes else Value(None, module.fqn)
        if assignment is None:
            if module.returns:
                return self._combined(module, module.returns, wanted=None)
            return Value(incoming.layout, module.fqn)
        if assignment.style.reduces_parameter_gradients:
            return Value(incoming.layout or wanted, module.fqn)
        return Value(normal(assignment.use.output), module.fqn)

    def _combined(self, consumer: Module, sources: Sequence[str], *, wanted: Placement | None) -> Value:
        """The one layout in which several values meet, after the gates between them and the consumer.

        Where they differ, most decide, then what the consumer wants, then the first: the residual stream.
        """
        if not sources:
            return Value(WHOLE, consumer.fqn)
        known = self._arrivals(consumer.fqn, sources)
        trusted = [value for value in known if self._family(value.origin) not in self.blamed]
        if len(known) > 1 and trusted:
            known = trusted
        if not known:
            return Value(None, consumer.fqn)
        layouts = [value.layout for value in known if value.layout is not None]
        chosen = max(dict.fromkeys(layouts), key=lambda layout: (layouts.count(layout), layout == wanted))
        others = [value for value in known if value.layout != chosen]
        if self._mixes_tokens(consumer.fqn, sources) and (others or chosen == SEQUENCE):
            self.clashes.append(_core_clash(consumer.fqn, known))
            return Value(None, consumer.fqn)
        winner = next(value for value in known if value.layout == chosen)
        for value in others:
            stays = value.layout == FEATURES and wanted != FEATURES
            kind = ClashKind.FEATURES_STAY_DIVIDED if stays else ClashKind.OTHER
            assert value.layout is not None, "unknown layouts were dropped"
            odd, rest = (value.origin,), (winner.origin,)
            self.clashes.append(Clash(kind, consumer.fqn, chosen, value.layout, odd, rest))
            self.blamed.add(self._family(value.origin))
        return winner

    def _arrivals(self, consumer: str, sources: Sequence[str]) -> list[Value]:
        """What reaches a consumer in a known layout."""
        values = (self._through_gates(consumer, fqn) for fqn in sources if fqn in self.leaving)
        return [value for value in values if value.layout is not None]

    def _through_gates(self, consumer: str, source: str) -> Value:
        """A value after every prepared container that it enters on its way, outermost first."""
        value = self.leaving[source]
        if not self.gates:
            return value
        parts = consumer.split(".")
        for depth in range(1, len(parts) + 1):
            gate = ".".join(parts[:depth])
            use = self.gates.get(gate)
            if use is None or source.startswith(f"{gate}."):
                continue
            needs = normal(use.input)
            if value.layout is not None and value.layout != needs:
                self.clashes.append(Clash(ClashKind.OTHER, gate, needs, value.layout, (value.origin,)))
                self.blamed.add(self._family(value.origin))
            value = Value(normal(use.computes_on), gate)
        return value

    def _clash(self, module: Module, incoming: Value, *, wanted: Placement) -> Clash | None:
        """Why a module cannot take its input as it comes, if it cannot."""
        arriving = incoming.layout
        if arriving is None:
            return None
        assignment = self.bound.styles.get(module.fqn)
        reduces = assignment is not None and assignment.style.reduces_parameter_gradients
        needs = wanted
        if module.kind is Kind.NORM and arriving == FEATURES and not self._is_per_head(module):
            kind, needs = ClashKind.OTHER, WHOLE
        elif arriving == wanted and assignment is not None and _leaves_gradients_partial(assignment):
            computed_on = normal(assignment.use.computes_on)
            return Clash(ClashKind.OTHER, module.fqn, WHOLE, computed_on, (module.fqn,))
        elif arriving == wanted:
            return None
        else:
            kind = _clash_kind(module, arriving, wanted=wanted, reduces=reduces)
        values = self._arrivals(module.fqn, module.sources)
        producers = tuple(dict.fromkeys(value.origin for value in values if value.layout == arriving))
        return Clash(kind, module.fqn, needs, arriving, producers)

    def _is_per_head(self, module: Module) -> bool:
        """Whether a norm works inside single heads, which stay whole when heads are divided."""
        attention = self.attentions.get(module.fqn.rpartition(".")[0])
        if attention is None:
            return False
        return all(parameter.shape == (attention.head_dim,) for parameter in module.parameters)

    def _mixes_tokens(self, consumer: str, sources: Sequence[str]) -> bool:
        """Whether queries, keys and values of one attention meet here."""
        parent = consumer.rpartition(".")[0]
        inside = all(fqn.startswith(f"{parent}.") for fqn in sources)
        return len(sources) > 1 and parent in self.attentions and inside

    def _family(self, fqn: str) -> str:
        return family(self.bound.inventory, fqn)


def _leaves_gradients_partial(assignment: Assignment) -> bool:
    """Whether whole parameters meet a part of the activations, and nothing sums their gradients."""
    style = assignment.style
    on_part = normal(assignment.use.computes_on) != WHOLE
    return on_part and not style.parameters and not style.reduces_parameter_gradients


def _clash_kind(module: Module, arriving: Placement, *, wanted: Placement, reduces: bool) -> ClashKind:
    if module.kind is Kind.NORM:
        if reduces or wanted != WHOLE:
            return ClashKind.OTHER
        return ClashKind.NORM_ON_SEQUENCE if arriving == SEQUENCE else ClashKind.NORM_ON_HEADS
    if arriving == FEATURES:
        return ClashKind.FEATURES_STAY_DIVIDED
    if wanted == FEATURES and arriving == WHOLE and module.kind is Kind.LINEAR:
        return ClashKind.FEATURES_NOT_DIVIDED
    return ClashKind.OTHER


def _core_clash(consumer: str, values: Sequence[Value]) -> Clash:
    """Queries, keys and values that are not alike, or not whole sequences."""
    sequences = tuple(value.origin for value in values if value.layout == SEQUENCE)
    if sequences:
        return Clash(ClashKind.OTHER, consumer, WHOLE, SEQUENCE, sequences)
    divided = tuple(value.origin for value in values if value.layout == FEATURES)
    rest = tuple(value.origin for value in values if value.layout != FEATURES)
    return Clash(ClashKind.HEADS_PARTLY, consumer, FEATURES, FEATURES, divided, rest)
