"""Whether rules are legal, by planc's own checks on a model with fewer layers of the same kinds."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planc.checks.context_parallel import eager_in_parts
from planc.checks.support.rule import Subject
from planc.checks.tensor_parallel import RULES
from planc.diagnostics import Diagnostic, Label, Severity
from planc.inventory.schema import Attention, Inventory, Module
from planc.layouts.entry import left_layers
from planc.layouts.families import family
from planc.layouts.flow import ClashKind
from planc.layouts.types import takes_shards
from planc.plan.bind import bind
from planc.plan.pattern import Pattern, parse_own
from planc.plan.spec import PatternRule, Plan, TensorParallelSpec
from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.solve.choices import members_of, patterns_for
from planc.source import Span
from planc.vocab import outwards, parent_of

NUM_ALIKE = 2
"""The number of layers of each kind: values of one layer reach the next."""


def stand_in(inventory: Inventory, *, num_alike: int = NUM_ALIKE) -> Inventory:
    """The inventory without all but a few of each kind of layer, and those behind which the layers end.

    What reads a layer that is left out reads the last of its kind that is not.
    """
    replaced = dict(_replaced(inventory, num_alike))
    if not replaced:
        return inventory

    def kept(fqn: str) -> bool:
        return not any(above in replaced for above in outwards(fqn))

    def renamed(fqn: str) -> str:
        layer = next((above for above in outwards(fqn) if above in replaced), None)
        return fqn if layer is None else replaced[layer] + fqn.removeprefix(layer)

    def module(one: Module) -> Module:
        sources, returns = (tuple(dict.fromkeys(map(renamed, read))) for read in (one.sources, one.returns))
        return replace(one, sources=sources, returns=returns)

    return replace(
        inventory,
        modules=tuple(module(one) for one in inventory.modules if kept(one.fqn)),
        attentions=tuple(attention for attention in inventory.attentions if kept(attention.fqn)),
        ties=tuple(tie for tie in inventory.ties if all(map(kept, tie))),
        own_attentions=tuple(filter(kept, inventory.own_attentions)),
        written=tuple(filter(kept, inventory.written)),
        reduced=tuple(filter(kept, inventory.reduced)),
    )


def num_kinds(inventory: Inventory) -> int:
    """The kinds of layers that differ in more than their place."""
    return len(_alike(inventory))


def _replaced(inventory: Inventory, num_alike: int) -> Iterator[tuple[str, str]]:
    """Layers beyond the first few of their kind, each with the last of those."""
    last = left_layers(inventory)
    for layers in _alike(inventory).values():
        kept = layers[:num_alike]
        yield from ((layer, kept[-1]) for layer in layers[num_alike:] if layer not in last)


def _alike(inventory: Inventory) -> dict[object, list[str]]:
    """The layers of each kind, in order."""
    attentions = {attention.fqn: attention for attention in inventory.attentions}
    members = {module.fqn: [module] for module in inventory.modules if inventory.is_layer(module.fqn)}
    for one in inventory.modules:
        for above in outwards(one.fqn):
            if above in members and above != one.fqn:
                members[above].append(one)
    found: dict[object, list[str]] = {}
    for layer, inside in members.items():
        kind = (parent_of(layer), tuple(_seen_from(layer, one, attentions) for one in inside))
        found.setdefault(kind, []).append(layer)
    return found


def _seen_from(layer: str, module: Module, attentions: dict[str, Attention]) -> object:
    """Return what decides the rules of a module and what it keeps, whichever layer it is in."""
    attention = attentions.get(module.fqn)
    inner = tuple(source.removeprefix(layer) for source in module.sources if source.startswith(f"{layer}."))
    returned = tuple(one.removeprefix(layer) for one in module.returns if one.startswith(f"{layer}."))
    return (
        module.fqn.removeprefix(layer),
        module.kind,
        module.parameters,
        inner,
        returned,
        replace(attention, fqn="") if attention else None,
        (module.activation, module.footprint, module.own_code, module.eager_code),
    )


Actions = Mapping[str, StyleAction]
"""The style of each family of modules that has one."""


@record
class Culprits:
    """Families that are at fault together: one has to take, or to give, another layout, or change at all."""

    takes: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    is_exact: frozenset[str] = frozenset()


@record
class Refusal:
    """The reason that rules are illegal."""

    finding: Diagnostic
    culprits: tuple[Culprits, ...]


class Oracle:
    """Judges candidates for one model. The plan's own rules always apply.

    It never refuses candidates for what is wrong without any rules. With `any_size`, it also accepts sizes
    that the plan's mesh does not divide: the checks of the plan report both.
    """

    def __init__(self, plan: Plan, inventory: Inventory, *, any_size: bool = False) -> None:
        assert plan.tensor_parallel is not None, "only a plan with the block asks for rules"
        self.plan, self.inventory = _bare(plan), inventory
        self.own = plan.tensor_parallel
        self._sizes = frozenset(map(plan.span, _SIZES)) if any_size else frozenset()
        self.packed = inventory.packed()
        self.kv_projections = inventory.kv_projections()
        self.members = members_of(inventory)
        self._patterns: dict[tuple[str, bool], tuple[Pattern, ...]] = {}

    @property
    def experts_on_shards(self) -> tuple[str, ...]:
        """The modules of experts to which ranks of tp send their own tokens."""
        bare = replace(self.own, auto=None)
        bound = bind(replace(self.plan, tensor_parallel=bare), self.inventory)
        return tuple(module.fqn for module in takes_shards(bound))

    def refusal(self, actions: Actions) -> Refusal | None:
        """Return the finding that makes the rules illegal; None for legal ones."""
        if not actions and not self.own.rules:
            return None
        rules = [self._rule(number, *one) for number, one in enumerate(actions.items(), start=1)]
        spec = TensorParallelSpec(self.own.on, None, (*self.own.rules, *rules), self.own.span)
        subject = Subject(bind(replace(self.plan, tensor_parallel=spec), self.inventory))
        finding = next((error for error in _errors(subject) if self._is_about_rules(error)), None)
        if finding is None:
            return None
        return Refusal(finding, tuple(dict.fromkeys(self._culprits(subject, finding, actions))))

    def _is_about_rules(self, finding: Diagnostic) -> bool:
        return finding.primary.span not in self._sizes and finding.primary not in self._without_rules

    @functools.cached_property
    def _without_rules(self) -> frozenset[Label]:
        """The labels of the errors that the plan has without any rules."""
        bare = Subject(bind(replace(self.plan, tensor_parallel=None), self.inventory))
        return frozenset(error.primary for error in _errors(bare))

    def replicates_kv(self, fqn: str) -> bool:
        """Whether a module projects to fewer key/value heads than there are ranks to share them."""
        if fqn not in self.kv_projections:
            return False
        num_kv_heads = self.kv_projections[fqn][0].num_kv_heads
        return num_kv_heads < self.plan.mesh.tp and self.plan.mesh.tp % num_kv_heads == 0

    def _culprits(self, subject: Subject, finding: Diagnostic, actions: Actions) -> Iterator[Culprits]:
        for clash in dict.fromkeys(subject.flow.clashes):
            consumer = frozenset([family(self.inventory, clash.consumer)])
            giving = (*clash.producers, *clash.partners)
            is_own = clash.kind is ClashKind.OWN_PARAMETER
            yield Culprits(
                takes=frozenset() if is_own else consumer,
                gives=frozenset(family(self.inventory, fqn) for fqn in giving),
                is_exact=consumer if is_own else frozenset(),
            )
        if not subject.flow.clashes:
            families = tuple(actions)
            places = (finding.primary.span, *(one.span for one in finding.secondary))
            found = frozenset(families[place.line - 1] for place in places if place.file == _FILE)
            # Whether a module's own parameters can be shards depends on the layers inside it.
            owners = tuple(f"{one}." for one in found if actions[one].style.placed_by_model)
            inside = frozenset(member for member in self.members if member.startswith(owners))
            yield Culprits(takes=inside, gives=inside, is_exact=found)

    def _rule(self, number: int, family: str, action: StyleAction) -> PatternRule[StyleAction]:
        key = family, action.style.prepares
        if key not in self._patterns:
            names = patterns_for(family, self.members, action.style, self.inventory)
            self._patterns[key] = tuple(parse_own(name, _place(0)) for name in names)
        return PatternRule(self._patterns[key], action, False, _place(number), _place(number))


def _bare(plan: Plan) -> Plan:
    """The plan without what no check of tensor parallelism reads."""
    fsdp, cp = plan.fsdp, plan.context_parallel
    return replace(
        plan,
        fsdp=replace(fsdp, rules=()) if fsdp else None,
        context_parallel=replace(cp, rules=()) if cp else None,
        optimizer=replace(plan.optimizer, rules=()),
        activation_checkpoint=None,
        compile=None,
        freeze=None,
        adapter=None,
        expectations=(),
    )


def _errors(subject: Subject) -> Iterator[Diagnostic]:
    """The errors in order; findings that follow from others are left out."""
    found: set[str] = set()
    for rule in (*RULES, eager_in_parts.check):
        if any(code.code in found for code in rule.unless):
            continue
        for one in rule.check(subject):
            found.add(one.code.code)
            if one.severity is Severity.ERROR:
                yield one


_SIZES = ("mesh.tp", "data.sequence_length")
"""Settings at which the checks report a size that ranks can't share."""
_FILE = "(candidate)"


def _place(number: int) -> Span:
    """The place of a candidate's rule: its number as a line."""
    return Span(_FILE, number, 1, number, 2)
