"""A plan's patterns applied to a model: which module gets which style, unit or policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from planc.inventory.adapters import can_have_adapter, with_adapters
from planc.inventory.routers import dispatchable
from planc.inventory.schema import Inventory, Kind
from planc.plan.adapter import Adapted
from planc.plan.auto import Automatic, AutoRule, own_rules
from planc.plan.parameters import (
    frozen_parameters,
    own_parameters,
    own_placements,
    parameters_inside,
)
from planc.plan.pattern import Pattern, parse_own
from planc.plan.quantized import quantized_layers
from planc.plan.spec import (
    NoCheckpointing,
    OffloadCheckpointing,
    PatternRule,
    Plan,
    SelectiveCheckpointing,
    Unit,
)
from planc.plan.style_actions import Region, StyleAction
from planc.plan.units import UnitGroup, in_waves, with_experts
from planc.record import record
from planc.source import NOWHERE, Span
from planc.styles import BY_NAME, Boundary, Style, StyleUse
from planc.styles.style import use
from planc.vocab import Placement, Replicate

T = TypeVar("T")

BUFFERS = ("input_ids", "labels", "position_ids")
"""The sequence tensors, each [batch, sequence]. Those without a rule are sharded over cp too."""
SEQUENCE_DIM = 1
"""The sequence tensors of a causal language model's step."""


@record
class Assignment:
    """One module's style; `rule` is None where `auto` gave it."""

    fqn: str
    style: Style
    use: StyleUse
    span: Span
    rule: PatternRule[StyleAction] | None
    parameters: Mapping[str, Placement]
    """Placements by local name; a parameter that is not listed is whole."""

    def placement(self, parameter: str) -> Placement:
        """The placement of a parameter, by its local name."""
        return self.parameters.get(parameter, Replicate())


@record
class Conflict:
    """Two rules that disagree about one name, neither of them an override."""

    name: str
    first: Span
    second: Span


@record
class Selection:
    """A pattern with what it may match and what it does: the subject of the pattern checks."""

    pattern: Pattern
    names: tuple[str, ...]
    matched: tuple[str, ...]


@record
class BoundPlan:
    """A plan and a model, with every pattern applied. Checks and lowering read this."""

    plan: Plan
    model: Inventory
    """The model without the plan's adapters, which `bind` takes."""
    inventory: Inventory
    """The model with them."""
    adapted: Mapping[str, Span]
    """The linear layers and modules of experts that have adapters."""
    styles: Mapping[str, Assignment]
    auto: Automatic
    unknown_styles: tuple[AutoRule, ...]
    """The rules of the model's own plan that planc has no style for."""
    experts: Mapping[str, Span]
    """The modules of experts that tokens are dispatched to; empty where all ranks hold all experts."""
    capped: Mapping[str, Span]
    """The modules of experts with a capacity."""
    stage_of: Mapping[str, tuple[int, Span]]
    """The stage of each layer, where the plan says it."""
    units: tuple[UnitGroup, ...]
    checkpointed: Mapping[str, Span]
    """Modules that are recomputed in backward, in whole or in part."""
    selective: frozenset[str]
    """The modules among them that keep what is expensive to compute."""
    offloaded: frozenset[str]
    """The checkpointed modules whose input waits in the host's memory."""
    compiled: Mapping[str, Span]
    """Modules that torch.compile compiles."""
    weight_decay: Mapping[str, tuple[float, Span]]
    """The weight decay by parameter fqn, where a group sets it."""
    learning_rates: Mapping[str, tuple[float, Span]]
    """Peaks by parameter fqn, where a group sets one."""
    frozen: Mapping[str, Span]
    """The parameters that are not trained, by the plan or by the model's own code."""
    quantized: Mapping[str, Span]
    """The linear layers whose frozen weights are stored in 4 bits."""
    rests: Mapping[str, tuple[bool, Span]]
    """Whether Muon's `rest` updates a parameter, where a group says it."""
    buffers: Mapping[str, tuple[int, Span]]
    conflicts: tuple[Conflict, ...]
    selections: tuple[Selection, ...]


def bind(plan: Plan, inventory: Inventory, auto: Automatic | None = None) -> BoundPlan:
    """Apply the plan's patterns to the model. Pure bookkeeping: the checks report errors.

    `auto` is what the word means, the model's own plan unless it is given.
    """
    conflicts: list[Conflict] = []
    selections: list[Selection] = []
    auto, model = auto or own_rules(inventory), inventory
    adapted = _adapted(plan, inventory, conflicts, selections)
    if plan.adapter is not None:
        layers = frozenset(fqn for fqn in adapted if can_have_adapter(inventory, fqn))
        inventory = with_adapters(inventory, layers, plan.adapter.kind)
    modules = inventory.names()
    styles, unknown = _styles(plan, inventory, auto, conflicts, selections)
    fsdp, checkpoint, cp = plan.fsdp, plan.activation_checkpoint, plan.context_parallel
    wrapped = _choose(checkpoint.rules if checkpoint else (), modules, conflicts, selections)
    regions = _choose(plan.compile.rules if plan.compile else (), modules, conflicts, selections)
    staged = _choose(plan.pipeline.rules if plan.pipeline else (), modules, conflicts, selections)
    ruled = _choose(cp.rules if cp else (), BUFFERS, conflicts, selections)
    buffers = dict.fromkeys(BUFFERS, (SEQUENCE_DIM, cp.span)) if cp else {}
    named, spec = _experts(plan, inventory, conflicts, selections), plan.expert_parallel
    experts = named if spec and spec.size > 1 else {}
    units = _units(fsdp.rules if fsdp else (), modules, conflicts, selections)
    groups = _of_parameters(plan.optimizer.rules, own_parameters(inventory), conflicts, selections)
    freeze = plan.freeze.rules if plan.freeze else ()
    kept = _of_parameters(freeze, parameters_inside(inventory), conflicts, selections)
    frozen = frozen_parameters(plan, inventory, kept)
    return BoundPlan(
        plan=plan,
        model=model,
        inventory=inventory,
        adapted=adapted,
        styles=styles,
        auto=auto,
        unknown_styles=unknown,
        experts=experts,
        capped=named if spec is not None and spec.capacity is not None else {},
        stage_of={fqn: (rule.action.index, rule.span) for fqn, rule in staged.items()},
        units=in_waves(with_experts(units, experts)),
        checkpointed={
            fqn: rule.span for fqn, rule in wrapped.items() if not isinstance(rule.action, NoCheckpointing)
        },
        selective=frozenset(
            fqn for fqn, rule in wrapped.items() if isinstance(rule.action, SelectiveCheckpointing)
        ),
        offloaded=frozenset(
            fqn for fqn, rule in wrapped.items() if isinstance(rule.action, OffloadCheckpointing)
        ),
        compiled={fqn: rule.span for fqn, rule in regions.items() if isinstance(rule.action, Region)},
        weight_decay=_given(groups, "weight_decay"),
        learning_rates=_given(groups, "lr"),
        frozen=frozen,
        quantized=quantized_layers(plan, inventory, frozen),
        rests=_given(groups, "rest"),
        buffers=buffers | {name: (rule.action.tensor_dim, rule.span) for name, rule in ruled.items()},
        conflicts=tuple(conflicts),
        selections=tuple(selections),
    )


def _given(groups: Mapping[str, PatternRule[Any]], option: str) -> dict[str, tuple[Any, Span]]:
    """An option by parameter, where a group sets it."""
    given = ((fqn, getattr(rule.action, option), rule.span) for fqn, rule in groups.items())
    return {fqn: (value, span) for fqn, value, span in given if value is not None}


def _select(rule: PatternRule[Any], names: tuple[str, ...], selections: list[Selection]) -> tuple[str, ...]:
    """Everything that a rule matches, in the order of `names`, noted for the pattern checks."""
    found = [Selection(pattern, names, pattern.select(names)) for pattern in rule.patterns]
    selections.extend(found)
    if len(found) == 1:
        return found[0].matched
    matched = {name for selection in found for name in selection.matched}
    return tuple(name for name in names if name in matched)


def _choose(
    rules: Sequence[PatternRule[T]],
    names: tuple[str, ...],
    conflicts: list[Conflict],
    selections: list[Selection],
) -> dict[str, PatternRule[T]]:
    """The rule that each name gets, in the order of `names`."""
    matched = [(rule, _select(rule, names, selections)) for rule in rules]
    return _decide(matched, names, conflicts)


def _decide(
    matched: Sequence[tuple[PatternRule[T], Sequence[str]]],
    names: Sequence[str],
    conflicts: list[Conflict],
    *,
    meaning: Callable[[PatternRule[T]], object] = lambda rule: rule.action,
) -> dict[str, PatternRule[T]]:
    """Each name's rule: an overriding one before the others, a higher layer's before a lower one's.

    Those that then remain must mean the same, and so must what layers above theirs say. The order of the
    rules plays no part: which of several equal ones is taken goes by their texts.
    """
    by_name: dict[str, list[PatternRule[T]]] = {}
    for rule, found in matched:
        for name in found:
            by_name.setdefault(name, []).append(rule)
    chosen: dict[str, PatternRule[T]] = {}
    for name in names:
        rules = by_name.get(name)
        if rules is None:
            continue
        if len(rules) == 1:
            chosen[name] = rules[0]
            continue
        strongest = _strongest(rules)
        chosen[name] = min(strongest, key=_texts)
        known = set(map(id, strongest))  # to compare rules by value would take long where there are many
        rivals = [rule for rule in rules if id(rule) in known or rule.level > strongest[0].level]
        other = next((rule for rule in rivals[1:] if meaning(rule) != meaning(rivals[0])), None)
        if other is not None:
            conflicts.append(Conflict(name, rivals[0].span, other.span))
    return chosen


def _strongest(rules: Sequence[PatternRule[T]]) -> Sequence[PatternRule[T]]:
    """The overriding rules of the highest layer that has some; all rules where none overrides."""
    level = max((rule.level for rule in rules if rule.override), default=0)
    return [rule for rule in rules if rule.override and rule.level == level] or rules


def decided(
    rules: Sequence[PatternRule[Any]], selections: Sequence[Selection]
) -> Iterator[tuple[PatternRule[Any], tuple[str, ...]]]:
    """Each rule of a block with the names that it decides; rules that decide none are left out."""
    by_pattern = {id(selection.pattern): selection.matched for selection in selections}
    matched = [
        (rule, [name for pattern in rule.patterns for name in by_pattern[id(pattern)]]) for rule in rules
    ]
    names = tuple(dict.fromkeys(name for _, found in matched for name in found))
    chosen = _decide(matched, names, [])
    own: dict[int, list[str]] = {}
    for name in names:
        own.setdefault(id(chosen[name]), []).append(name)
    for rule in rules:
        if id(rule) in own:
            yield rule, tuple(own[id(rule)])


def _texts(rule: PatternRule[Any]) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in rule.patterns)


def _styles(
    plan: Plan,
    inventory: Inventory,
    auto: Automatic,
    conflicts: list[Conflict],
    selections: list[Selection],
) -> tuple[Mapping[str, Assignment], tuple[AutoRule, ...]]:
    spec = plan.tensor_parallel
    if spec is None:
        return {}, ()
    chosen = _choose(spec.rules, inventory.names(), conflicts, selections)
    styles: dict[str, Assignment] = {}
    unknown: list[AutoRule] = []
    own = own_placements(inventory)

    def assigned(
        fqn: str, style: Style, boundary: Boundary, span: Span, rule: PatternRule[StyleAction] | None
    ) -> Assignment:
        module = inventory.get(fqn)
        assert module is not None, f"{fqn} was matched in this inventory"
        placed = own.get(fqn, {}) if style.placed_by_model else style.placements(module.kind, boundary)
        return Assignment(fqn, style, use(style, boundary), span, rule, placed)

    if spec.auto is not None:
        for fqn, style, boundary in _auto(inventory, auto, unknown):
            rule = chosen.get(fqn)
            if rule is None:
                styles[fqn] = assigned(fqn, style, boundary, spec.auto.span, None)
            elif not rule.override and _meant(rule.action) != _meant(StyleAction(style, boundary)):
                conflicts.append(Conflict(fqn, spec.auto.span, rule.span))
    for fqn, rule in chosen.items():
        action = rule.action
        styles[fqn] = assigned(fqn, action.style, action.boundary, rule.span, rule)
    order = {fqn: index for index, fqn in enumerate(inventory.names())}
    return dict(sorted(styles.items(), key=lambda item: order[item[0]])), tuple(unknown)


def _meant(action: StyleAction) -> object:
    """Return the effect of a rule on a module, to compare."""
    style, boundary = action.style, action.boundary
    return use(style, boundary), style.placements(Kind.LINEAR, boundary)


def _auto(
    inventory: Inventory, auto: Automatic, unknown: list[AutoRule]
) -> Iterator[tuple[str, Style, Boundary]]:
    """Yield the style that the rules of `auto` give each module."""
    for rule in auto.rules:
        matched = parse_own(rule.pattern, NOWHERE).select(inventory.names())
        style = BY_NAME.get(rule.style)
        if style is None:
            unknown.extend([rule] if matched else [])
            continue
        for fqn in matched:
            module = inventory.get(fqn)
            if module is not None and (module.parameters or style.prepares):
                yield fqn, style, rule.boundary


def _units(
    rules: Sequence[PatternRule[Unit]],
    names: tuple[str, ...],
    conflicts: list[Conflict],
    selections: list[Selection],
) -> tuple[UnitGroup, ...]:
    """One group for each module that a pattern matches; a list of several makes a single group."""
    matched = [(rule, _select(rule, names, selections)) for rule in rules]
    chosen = _decide(matched, names, conflicts, meaning=_grouping)
    groups: list[UnitGroup] = []
    for rule, found in matched:
        members = tuple(name for name in found if chosen[name] is rule)
        if len(rule.patterns) > 1:
            groups.extend([UnitGroup(members, rule.action, rule.span)] if members else [])
        else:
            groups.extend(UnitGroup((name,), rule.action, rule.span) for name in members)
    # The model's order, not the rules': the order in which a plan lists its rules never matters.
    order = {name: index for index, name in enumerate(names)}
    return tuple(sorted(groups, key=lambda group: order[group.fqns[0]]))


def _experts(
    plan: Plan, inventory: Inventory, conflicts: list[Conflict], selections: list[Selection]
) -> Mapping[str, Span]:
    """The modules that `expert_parallel` names, in the model's order."""
    spec, names = plan.expert_parallel, inventory.names()
    if spec is None:
        return {}
    chosen = {module.fqn: spec.auto.span for module in dispatchable(inventory)} if spec.auto else {}
    chosen |= {fqn: rule.span for fqn, rule in _choose(spec.rules, names, conflicts, selections).items()}
    return {fqn: chosen[fqn] for fqn in names if fqn in chosen}


def _adapted(
    plan: Plan, inventory: Inventory, conflicts: list[Conflict], selections: list[Selection]
) -> Mapping[str, Span]:
    """The modules that get adapters, in the model's order."""
    rules = plan.adapter.rules if plan.adapter else ()
    chosen = _choose(rules, inventory.names(), conflicts, selections)
    return {fqn: rule.span for fqn, rule in chosen.items() if isinstance(rule.action, Adapted)}


def _grouping(rule: PatternRule[Unit]) -> object:
    """Return a unit rule's meaning for a module. An overriding list also gathers its modules together."""
    return rule.action, _texts(rule) if rule.override and len(rule.patterns) > 1 else ()


def _of_parameters(
    rules: Sequence[PatternRule[T]],
    parameters: Mapping[str, Sequence[str]],
    conflicts: list[Conflict],
    selections: list[Selection],
) -> Mapping[str, PatternRule[T]]:
    """The rule that each parameter gets; `parameters` are those of each name that a pattern may match."""
    order = {fqn: None for names in parameters.values() for fqn in names}
    places = {fqn: index for index, fqn in enumerate(order)}
    candidates = tuple(parameters)
    matched: list[tuple[PatternRule[T], Sequence[str]]] = []
    for rule in rules:
        matching: dict[str, None] = {}
        for pattern in rule.patterns:
            fitting = {fqn for name in pattern.select(candidates) for fqn in parameters[name]}
            hits = tuple(sorted(fitting, key=places.__getitem__))
            selections.append(Selection(pattern, candidates, hits))
            matching.update(dict.fromkeys(hits))
        matched.append((rule, tuple(matching)))
    return _decide(matched, tuple(order), conflicts)
