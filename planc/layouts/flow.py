"""The layout over tp of every module's inputs and outputs, inferred along the recorded data flow.

A type inference with the types and module signatures of `layouts.types`. Values that are combined must
have one type, at modules and in the places between them (`layouts.places`). A clash leaves its consumer's
output unknown, and unknown agrees with everything, so one fault is found once and not again in every layer
after it. A model that feeds its own layers again is walked until its loops agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planc.inventory.schema import Kind, Module
from planc.layouts.data_order import data_order, module_of
from planc.layouts.families import family
from planc.layouts.places import Places, places
from planc.layouts.types import PLAIN, WHOLE, GradientFault, Signature, gradient_fault, signatures
from planc.plan.bind import BoundPlan
from planc.record import record
from planc.styles.edges import BATCH, FEATURES, SEQUENCE
from planc.vocab import Placement, parent_of

_MAX_WALKS = 4
"""The most passes over a model with loops: each pass changes the layouts of each loop once."""


class ClashKind(StrEnum):
    """The rule that reports a clash."""

    FEATURES_STAY_DIVIDED = "features-stay-divided"
    FEATURES_NOT_DIVIDED = "features-not-divided"
    NORM_ON_SEQUENCE = "norm-on-sequence"
    NORM_ON_HEADS = "norm-on-heads"
    HEADS_PARTLY = "heads-partly"
    TOKENS_APART = "tokens-apart"
    FEATURES_APART = "features-apart"
    OWN_PARAMETER = "own-parameter"
    OTHER = "other"


@record
class Clash:
    """An input of `consumer` has the layout `arriving`, and the module needs `needs`.

    `producers` gave it that layout. `partners` are the other values, if the clash is between values that
    are combined.
    """

    kind: ClashKind
    consumer: str
    needs: Placement
    arriving: Placement
    producers: tuple[str, ...]
    partners: tuple[str, ...] = ()
    gradient: GradientFault | None = None
    """The fault of the consumer's own gradients if it ran."""


@record
class Value:
    """A module's output: its layout (None where unknown), and the module that gave it that layout."""

    layout: Placement | None
    origin: str


@record
class Flow:
    """The output of every recorded module, and all clashes, in the order of computation."""

    leaving: dict[str, Value]
    clashes: tuple[Clash, ...]


def layout_flow(bound: BoundPlan) -> Flow:
    """The flow of a plan's activations through its model. Adapters are inside of their layers' edges."""
    bound = replace(bound, inventory=bound.model)
    order, has_loops = data_order(bound.inventory)
    known = signatures(bound)
    setting = _Setting(bound, places(bound.inventory), _gates(bound, known), known)
    walk = _walked(setting, order, {})
    for _ in range(_MAX_WALKS if has_loops else 0):
        before, walk = walk, _walked(setting, order, walk.leaving)
        if before.leaving == walk.leaving:
            break
    return Flow(walk.leaving, tuple(dict.fromkeys(walk.clashes)))


def _gates(bound: BoundPlan, known: dict[str, Signature]) -> dict[str, Signature]:
    """Containers that redistribute their input."""
    return {fqn: known[fqn] for fqn, assignment in bound.styles.items() if assignment.style.prepares}


@record
class _Setting:
    """The input of every walk over one model."""

    bound: BoundPlan
    places: Places
    gates: dict[str, Signature]
    signatures: dict[str, Signature]


def _walked(setting: _Setting, order: tuple[Module, ...], known: dict[str, Value]) -> _Walk:
    """A walk over the whole model; loops start with the results of an earlier walk."""
    walk = _Walk(setting, leaving=dict(known))
    for module in order:
        walk.leaving[module.fqn] = walk.output(module)
    return walk


@dataclass(slots=True, eq=False, repr=False)
class _Walk:
    """The state of one pass over the model."""

    setting: _Setting
    leaving: dict[str, Value] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)
    blamed: set[str] = field(default_factory=set)
    """Families that already are in a clash: the other values decide the layout."""
    gates_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def output(self, module: Module) -> Value:
        """The layout of a module's output; records its clashes."""
        if not module.parameters:
            return self._container(module)
        if module.fqn in self.setting.gates:
            return self._prepared(module)
        using = self.setting.signatures.get(module.fqn)
        wanted = using.takes if using else WHOLE
        incoming = self._combined(module, module.sources, wanted=wanted)
        clash = self._clash(module, incoming, wanted=wanted) or self._own_parameter(module)
        if clash is not None:
            self.clashes.append(clash)
            self.blamed.update(self._family(fqn) for fqn in clash.producers)
            # A norm works token by token, so modules after it are checked as if it were correct.
            passes = clash.kind in (ClashKind.NORM_ON_SEQUENCE, ClashKind.NORM_ON_HEADS)
            return incoming if passes else Value(None, module.fqn)
        if module.returns and (using is None or using.gives is None):
            return self._combined(module, module.returns, wanted=None)
        if using is None:
            return Value(incoming.layout, module.fqn)
        if using.gives is None:
            return Value(incoming.layout or wanted, module.fqn)
        return Value(using.gives, module.fqn)

    def _container(self, module: Module) -> Value:
        """The output of a module without parameters, as a block's member: the stream that layers add to."""
        value = self._combined(module, module.returns, wanted=None)
        if value.layout != FEATURES or module.fqn not in self.setting.places.members:
            return value
        if self._has_clash(module):
            return value
        self._note(ClashKind.FEATURES_APART, module.fqn, WHOLE, FEATURES, (value.origin,))
        return Value(None, module.fqn)

    def _prepared(self, module: Module) -> Value:
        """The output, before it is redistributed, of a module with parameters whose input is prepared."""
        clash = self._own_parameter(module)
        if clash is not None:
            self.clashes.append(clash)
            return Value(None, module.fqn)
        if module.returns:
            return self._combined(module, module.returns, wanted=None)
        return Value(self.setting.gates[module.fqn].computes_on, module.fqn)

    def _own_parameter(self, module: Module) -> Clash | None:
        """Record the clash of a module with parameters of its own whose layers give it shards."""
        children = self.setting.places.children.get(module.fqn, ())
        known = [self.leaving.get(child.fqn) for child in children if child.fqn not in module.returns]
        parts = [value for value in known if value and value.layout not in (None, WHOLE)]
        using = self.setting.signatures.get(module.fqn)
        if using is not None and all(parameter.name in using.parameters for parameter in module.parameters):
            return None
        if not parts or parts[0].layout is None or self._has_clash(module):
            return None
        producers = tuple(dict.fromkeys(value.origin for value in parts))
        return Clash(
            ClashKind.OWN_PARAMETER,
            module.fqn,
            WHOLE,
            parts[0].layout,
            producers,
            gradient=GradientFault.NEVER_SUMMED,
        )

    def _has_clash(self, module: Module) -> bool:
        """Whether a module contains a clash, which makes later ones mere consequences."""
        return any(clash.consumer.startswith(f"{module.fqn}.") for clash in self.clashes)

    def _combined(self, consumer: Module, sources: Sequence[str], *, wanted: Placement | None) -> Value:
        """The one layout of several combined values, after the containers between them and the consumer.

        If they differ, the majority decides, then the consumer's need, then the first: the residual stream.
        """
        if not sources:
            return Value(WHOLE, consumer.fqn)
        arriving: Sequence[tuple[str, Value]] = self._arrivals(consumer.fqn, sources)
        if self._breaks_a_place(consumer, arriving):
            return Value(None, consumer.fqn)
        arriving = self._latent_beside_heads(arriving, is_head_norm=_is_head_norm(consumer, wanted=wanted))
        known = [value for _, value in arriving if value.layout is not None]
        if not known:
            return Value(None, consumer.fqn)
        if all(value.layout == known[0].layout for value in known):
            return known[0]
        if self.blamed:
            known = [value for value in known if self._family(value.origin) not in self.blamed] or known
        layouts = [value.layout for value in known if value.layout is not None]
        chosen = max(dict.fromkeys(layouts), key=lambda layout: (layouts.count(layout), layout == wanted))
        others = [value for value in known if value.layout != chosen]
        if others and self._is_core(consumer.fqn, sources):
            self._note_heads(consumer.fqn, known)
            return Value(None, consumer.fqn)
        winner = next(value for value in known if value.layout == chosen)
        for value in others:
            stays = value.layout == FEATURES and wanted != FEATURES
            kind = ClashKind.FEATURES_STAY_DIVIDED if stays else ClashKind.OTHER
            assert value.layout is not None, "unknown layouts were dropped"
            self._note(kind, consumer.fqn, chosen, value.layout, (value.origin,), (winner.origin,))
        return winner

    def _breaks_a_place(self, consumer: Module, arriving: Sequence[tuple[str, Value]]) -> bool:
        """Whether a place between values and a module needs another layout; records the clash."""
        places = self.setting.places
        divided = [(source, value) for source, value in arriving if value.layout not in (WHOLE, None)]
        features = [(source, value) for source, value in divided if value.layout == FEATURES]
        tokens = [
            value
            for source, value in (divided if len(features) < len(divided) else ())
            if value.layout in (SEQUENCE, BATCH) and places.mixer(source, consumer.fqn)
        ]
        if tokens and tokens[0].layout is not None:
            origins = [value.origin for value in tokens]
            self._note(ClashKind.TOKENS_APART, consumer.fqn, WHOLE, tokens[0].layout, origins)
            return True
        is_apart = any(places.is_normed(source, consumer.fqn) for source, _ in features)
        if not is_apart and 1 < len(features) == len(arriving):
            is_apart = self._are_joined(consumer, [source for source, _ in arriving])
        if is_apart:
            origins = [value.origin for _, value in features]
            self._note(ClashKind.FEATURES_APART, consumer.fqn, WHOLE, FEATURES, origins)
        return is_apart

    def _are_joined(self, consumer: Module, sources: Sequence[str]) -> bool:
        """Whether the outputs of linear layers reach another concatenated, and not separately.

        A rank's shards of two tensors are not a shard of both concatenated. In mixers, widths prove nothing.
        """
        modules = [module_of(self.setting.bound.inventory, fqn) for fqn in sources]
        if not all(module.is_linear for module in (*modules, consumer)):
            return False
        if any(self.setting.places.mixer(module.fqn, consumer.fqn) for module in modules):
            return False
        return any(module.out_features != consumer.in_features for module in modules)

    def _arrivals(self, consumer: str, sources: Sequence[str]) -> list[tuple[str, Value]]:
        """The value that reaches a consumer, with the module that it comes from."""
        if not self.setting.gates:
            return [(fqn, self.leaving[fqn]) for fqn in sources if fqn in self.leaving]
        known = ((fqn, self._left(fqn, consumer)) for fqn in sources if fqn in self.leaving)
        gates = self._gates_of(consumer)
        return [(fqn, self._through(gates, fqn, value)) for fqn, value in known]

    def _left(self, source: str, consumer: str) -> Value:
        """A module's output after every prepared container that it leaves on its way to a consumer."""
        value = self.leaving[source]
        for gate in reversed(self._gates_of(source)):
            using, style = self.setting.gates[gate], self.setting.bound.styles[gate].style
            if "output" not in style.options or f"{consumer}.".startswith(f"{gate}."):
                continue
            if value.layout is not None and value.layout != using.computes_on:
                self._note(ClashKind.OTHER, gate, using.computes_on, value.layout, (value.origin,))
            assert using.gives is not None, "only norms and attentions keep the layout of their input"
            value = Value(using.gives, gate)
        return value

    def _latent_beside_heads(
        self, arriving: Sequence[tuple[str, Value]], *, is_head_norm: bool
    ) -> Sequence[tuple[str, Value]]:
        """Combined values; whole ones whose gradients from sharded heads are summed count as such heads."""
        known = self.setting.signatures
        latent = {source for source, _ in arriving if source in known and known[source].meets_heads}
        heads = [value for source, value in arriving if source not in latent]
        if not latent or not (is_head_norm or any(value.layout == FEATURES for value in heads)):
            return arriving
        return [
            (source, Value(FEATURES, source) if source in latent else value) for source, value in arriving
        ]

    def _gates_of(self, consumer: str) -> tuple[str, ...]:
        """The prepared containers around a module, outermost first."""
        if not self.setting.gates:
            return ()
        parent = parent_of(consumer)
        if parent not in self.gates_of:
            self.gates_of[parent] = self._gates_of(parent) if parent else ()
        return (*self.gates_of[parent], consumer) if consumer in self.setting.gates else self.gates_of[parent]

    def _through(self, gates: Sequence[str], source: str, value: Value) -> Value:
        """A value after every prepared container that it enters on its way."""
        for gate in gates:
            if source.startswith(f"{gate}."):
                continue
            using = self.setting.gates[gate]
            if value.layout is not None and value.layout != using.takes:
                self._note(ClashKind.OTHER, gate, using.takes, value.layout, (value.origin,))
            value = Value(using.computes_on, gate)
        return value

    def _clash(self, module: Module, incoming: Value, *, wanted: Placement) -> Clash | None:
        """Explain why a module can't take its input in the layout it has; None if it can."""
        arriving = incoming.layout
        if arriving is None:
            return None
        using = self.setting.signatures.get(module.fqn, PLAIN)
        gradient = gradient_fault(module, using, arriving=arriving)
        needs = wanted
        if module.kind is Kind.NORM and arriving == FEATURES and not self._is_per_head(module):
            kind, needs = ClashKind.OTHER, WHOLE
        elif arriving == wanted:
            return None
        else:
            kind = _clash_kind(module, arriving, using=using)
        values = [value for _, value in self._arrivals(module.fqn, module.sources)]
        giving = [value.origin for value in values if value.layout == arriving]
        if values and not giving:
            return None  # Whole latents that heads share count as shards: each rank has all of them.
        producers = tuple(dict.fromkeys(giving or [module.fqn]))
        return Clash(kind, module.fqn, needs, arriving, producers, gradient=gradient)

    def _is_per_head(self, module: Module) -> bool:
        """Whether a norm works inside single heads, which stay whole when heads are sharded."""
        attention = self.setting.places.attentions.get(parent_of(module.fqn))
        if attention is None:
            return False
        return all(parameter.shape == (attention.head_dim,) for parameter in module.parameters)

    def _is_core(self, consumer: str, sources: Sequence[str]) -> bool:
        """Whether queries, keys and values of one attention are combined here."""
        parent = parent_of(consumer)
        inside = all(fqn.startswith(f"{parent}.") for fqn in sources)
        return len(sources) > 1 and parent in self.setting.places.attentions and inside

    def _note_heads(self, consumer: str, values: Sequence[Value]) -> None:
        """Queries, keys and values that are sharded differently."""
        divided = tuple(value.origin for value in values if value.layout == FEATURES)
        rest = tuple(value.origin for value in values if value.layout != FEATURES)
        self.clashes.append(Clash(ClashKind.HEADS_PARTLY, consumer, FEATURES, FEATURES, divided, rest))

    def _note(
        self,
        kind: ClashKind,
        consumer: str,
        needs: Placement,
        arriving: Placement,
        producers: Sequence[str],
        partners: tuple[str, ...] = (),
    ) -> None:
        self.clashes.append(Clash(kind, consumer, needs, arriving, tuple(dict.fromkeys(producers)), partners))
        self.blamed.update(self._family(fqn) for fqn in producers)

    def _family(self, fqn: str) -> str:
        return family(self.setting.bound.inventory, fqn)


def _is_head_norm(module: Module, *, wanted: Placement | None) -> bool:
    return module.kind is Kind.NORM and wanted == FEATURES


def _clash_kind(module: Module, arriving: Placement, *, using: Signature) -> ClashKind:
    if module.kind is Kind.NORM:
        if using.sums_whole or using.takes != WHOLE:
            return ClashKind.OTHER
        return ClashKind.NORM_ON_SEQUENCE if arriving == SEQUENCE else ClashKind.NORM_ON_HEADS
    if arriving == FEATURES:
        return ClashKind.FEATURES_STAY_DIVIDED
    if using.takes == FEATURES and arriving == WHOLE and module.is_linear:
        return ClashKind.FEATURES_NOT_DIVIDED
    return ClashKind.OTHER
