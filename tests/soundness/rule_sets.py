"""Random rule sets of one model: what `auto` means for it, changed at random, and written in several forms.

Sets drawn module by module are nearly all refused. These start from rules that are right, and change parts of
them: some layers, a style of the same kind, a placement between two layers, the redistribution around a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random

from planc.inventory.schema import Inventory, Kind, Module
from planc.layouts.families import as_patterns, exact_families, family
from planc.plan.bind import BoundPlan
from tests.mutants.draft import Rule

AUTOS = ("auto(solve)", "auto", "auto(sequence_parallel = true)")
PLACEMENTS = ("Replicate()", "Shard(1)", "Shard(-1)", "Shard(2)", "Shard(0)")
_USUAL = ("Replicate()", "Shard(1)", "Shard(1)", "Shard(-1)")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "colwise": ("input", "output"),
    "colwise_gather_output": ("input",),
    "packed_colwise": ("input",),
    "rowwise": ("input", "output"),
    "rowwise_split_input": ("output",),
    "embedding_rowwise": ("output",),
    "embedding_colwise": ("output",),
    "prepare_input": ("input", "desired"),
    "prepare_input_output": ("input", "desired", "output"),
    "sequence_parallel": ("sequence_dim",),
}
"""What each style's call takes."""
_GATHERED = {"colwise": "colwise_gather_output", "rowwise": "rowwise_split_input"}
_STYLES: Mapping[Kind, tuple[str, ...]] = {
    Kind.LINEAR: (
        *chain(*_GATHERED.items()),
        *("packed_colwise", "replicated_kv", "replicate", "sequence_parallel"),
    ),
    Kind.EMBEDDING: ("embedding_rowwise", "embedding_colwise", "replicate"),
    Kind.NORM: ("sequence_parallel", "replicated_with_grad_allreduce", "replicate"),
    Kind.CONTAINER: ("prepare_input", "prepare_input_output"),
    Kind.OTHER: ("prepare_input_output", "replicate"),
}


@dataclass(frozen=True, slots=True)
class Action:
    """A style with its options."""

    style: str
    options: tuple[tuple[str, str], ...] = ()

    def having(self, option: str, value: str) -> Action:
        """With an option, if the style takes it."""
        if option not in OPTIONS.get(self.style, ()):
            return self
        kept = tuple(one for one in self.options if one[0] != option)
        return Action(self.style, tuple(sorted((*kept, (option, value)))))

    def as_style(self, style: str) -> Action:
        return Action(style, tuple(one for one in self.options if one[0] in OPTIONS.get(style, ())))


Actions = dict[str, Action]
"""By module."""


@dataclass(frozen=True, slots=True)
class Base:
    """What one spelling of `auto` means for a model."""

    auto: str
    actions: Actions

    @property
    def is_on_sequence(self) -> bool:
        return "sequence" in self.auto


def base_of(auto: str, bound: BoundPlan) -> Base:
    """The rules that a plan with nothing but `auto` has."""
    actions = {}
    for fqn, assignment in bound.styles.items():
        use = assignment.use
        values = {
            "input": use.input,
            "output": use.output,
            "desired": use.computes_on,
            "sequence_dim": use.sequence_dim,
        }
        options = OPTIONS.get(assignment.style.name, ())
        actions[fqn] = Action(
            assignment.style.name, tuple((one, str(values[one])) for one in sorted(options))
        )
    return Base(auto, actions)


@dataclass(slots=True)
class Draw:
    """Draws rule sets of one model. `parts` are the children of layers, such as attention, by family."""

    inventory: Inventory
    bases: Sequence[Base]
    random: Random
    parts: dict[str, list[Module]] = field(init=False)
    outside: list[Module] = field(init=False)

    def __post_init__(self) -> None:
        self.parts, self.outside = {}, []
        for module in self.inventory.modules:
            layer = self._layer(module.fqn)
            if layer and module.fqn != layer:
                child = module.fqn[len(layer) + 1 :].partition(".")[0]
                self.parts.setdefault(family(self.inventory, f"{layer}.{child}"), []).append(module)
            elif module.parameters:
                self.outside.append(module)

    def rules(self) -> str:
        """The lines of one rule set."""
        base = self.random.choice(self.bases)
        actions = dict(base.actions)
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3))):
            change = self.random.choice(_ON_SEQUENCE if base.is_on_sequence else _ON_WHOLE)
            actions = change(self, actions)
        self._complete(actions)
        lines = self._beside(base, actions) if self.random.random() < 0.25 else None
        return "\n".join(f"  {line}" for line in lines or self._alone(actions))

    def _complete(self, actions: Actions, *, to: Mapping[str, Action] | None = None) -> None:
        """Say what layers without a rule have where others of the family have one: by default, that they
        are whole."""
        to = to or {}
        named = {family(self.inventory, fqn) for fqn in actions}
        for module in self.inventory.modules:
            if module.fqn not in actions and family(self.inventory, module.fqn) in named:
                actions[module.fqn] = to.get(module.fqn) or _nothing(module)

    def _layer(self, fqn: str) -> str:
        for block in self.inventory.blocks:
            if fqn.startswith(f"{block}."):
                return f"{block}.{fqn[len(block) + 1 :].partition('.')[0]}"
        return ""

    def _alone(self, actions: Actions) -> list[str]:
        """The rules of these actions without `auto`."""
        groups: dict[tuple[str, Action], list[str]] = {}
        overrides: list[Rule] = []
        for name, members in self._by_family(actions).items():
            usual, *others = dict.fromkeys(actions[fqn] for fqn in members)
            if others and self.random.random() < 0.3:
                # One rule for all layers, which others override.
                groups.setdefault((name, usual), []).extend(members)
                rest = {one: [fqn for fqn in members if actions[fqn] == one] for one in others}
                overrides += [
                    rule for one, fqns in rest.items() for rule in self._named(fqns, one, override=True)
                ]
                continue
            for fqn in members:
                groups.setdefault((name.rpartition(".")[0], actions[fqn]), []).append(fqn)
        rules = [rule for (_, one), fqns in groups.items() for rule in self._named(fqns, one)]
        return [str(rule) for rule in (*rules, *overrides)]

    def _by_family(self, actions: Actions) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for fqn in actions:
            found.setdefault(family(self.inventory, fqn), []).append(fqn)
        return found

    def _named(self, fqns: Sequence[str], action: Action, *, override: bool = False) -> Iterator[Rule]:
        for pattern in as_patterns(exact_families(self.inventory, fqns)):
            yield Rule((pattern,), action.style, action.options, override)

    def _beside(self, base: Base, actions: Actions) -> list[str]:
        """`auto` and what differs from it."""
        changed = {fqn: one for fqn, one in actions.items() if base.actions.get(fqn) != one}
        for module in self.inventory.modules:
            if module.fqn in base.actions and module.fqn not in actions:
                changed[module.fqn] = _nothing(module)
        self._complete(changed, to=base.actions)
        return [base.auto, *self._alone(changed)]

    # What is changed.

    def some_layers(self, modules: Sequence[Module]) -> list[Module]:
        """Those in all layers, or in some."""
        layers = list(dict.fromkeys(self._layer(module.fqn) for module in modules))
        if len(layers) > 1 and self.random.random() < 0.5:
            layers = self.random.sample(layers, self.random.randrange(1, len(layers)))
        return [module for module in modules if self._layer(module.fqn) in layers]

    def a_part(self) -> list[Module]:
        """The modules of one part of a layer, in all layers or in some."""
        named = [part for part in self.parts.values() if any(one.parameters for one in part)]
        return self.some_layers(self.random.choice(named or [self.outside]))

    def a_family(self, kinds: Sequence[Kind]) -> list[Module]:
        """The modules of one family, in all layers or in some."""
        found: dict[str, list[Module]] = {}
        for module in (one for one in self.inventory.modules if one.fqn and one.kind in kinds):
            found.setdefault(family(self.inventory, module.fqn), []).append(module)
        return self.some_layers(self.random.choice(list(found.values()))) if found else []

    def with_option(self, action: Action) -> Action:
        """At times with one option more, or another value of it."""
        options = OPTIONS.get(action.style, ())
        if not options or self.random.random() < 0.5:
            return action
        option = self.random.choice(options)
        return action.having(option, self.value(option))

    def value(self, option: str) -> str:
        if option == "sequence_dim":
            return self.random.choice(("1", "1", "0", "2"))
        return self.random.choice(_USUAL if self.random.random() < 0.8 else PLACEMENTS)


def _nothing(module: Module) -> Action:
    """The rule that leaves a module whole."""
    return Action("prepare_input_output" if module.kind is Kind.CONTAINER else "replicate")


Change = Callable[[Draw, Actions], Actions]


def leave_whole(draw: Draw, actions: Actions) -> Actions:
    """A part of layers without rules; on shards of the sequence, between a gather and a scatter."""
    part = draw.a_part()
    names = {module.fqn for module in part}
    around = [one for one in part if one.fqn.count(".") == min(name.count(".") for name in names)]
    kept = {fqn: action for fqn, action in actions.items() if fqn not in names}
    if any("Shard(1)" in dict(actions[fqn].options).values() for fqn in names & actions.keys()):
        gathered = Action("prepare_input_output").having("input", "Shard(1)").having("output", "Shard(1)")
        kept |= {one.fqn: gathered for one in around if one.kind in (Kind.CONTAINER, Kind.OTHER)}
    return kept


def gather(draw: Draw, actions: Actions) -> Actions:
    """Linear layers of a part whose outputs are gathered, and inputs split again."""
    names = {module.fqn for module in draw.a_part()}
    return {
        fqn: one.as_style(_GATHERED.get(one.style, one.style)) if fqn in names else one
        for fqn, one in actions.items()
    }


def restyle(draw: Draw, actions: Actions) -> Actions:
    """Another style of its kind for one family."""
    modules = draw.a_family((Kind.LINEAR, Kind.EMBEDDING, Kind.NORM))
    if not modules:
        return actions
    style = draw.random.choice(_STYLES[modules[0].kind])
    action = draw.with_option(Action(style))
    return {**actions, **{one.fqn: action for one in modules}}


def restyle_an_end(draw: Draw, actions: Actions) -> Actions:
    """Another style, or none, for an embedding, the last norm or the head."""
    ends = [one for one in draw.outside if one.kind in (Kind.LINEAR, Kind.EMBEDDING, Kind.NORM)]
    if not ends:
        return actions
    module = draw.random.choice(ends)
    style = draw.random.choice((*_STYLES[module.kind], ""))
    if not style:
        return {fqn: one for fqn, one in actions.items() if fqn != module.fqn}
    known = dict(actions[module.fqn].options) if module.fqn in actions else {}
    action = Action(style)
    for option in OPTIONS.get(style, ()):
        action = action.having(option, known[option]) if option in known else action
    return {**actions, module.fqn: draw.with_option(action)}


def change_an_option(draw: Draw, actions: Actions) -> Actions:
    """Another placement at one end of a family."""
    names = {one.fqn for one in draw.a_family((Kind.LINEAR, Kind.EMBEDDING, Kind.CONTAINER))}
    found = [fqn for fqn in actions if fqn in names and actions[fqn].style in OPTIONS]
    if not found:
        return actions
    option = draw.random.choice(OPTIONS[actions[found[0]].style])
    value = draw.value(option)
    return {**actions, **{fqn: actions[fqn].having(option, value) for fqn in found}}


def change_a_hand_over(draw: Draw, actions: Actions) -> Actions:
    """Another placement of what a linear layer gives to others that read it."""
    value = draw.value("output")
    modules = draw.a_family((Kind.LINEAR,))
    changed = {one.fqn: _linear(actions, one).having("output", value) for one in modules}
    for reader in draw.inventory.modules:
        if reader.kind is Kind.LINEAR and any(source in changed for source in reader.sources):
            changed[reader.fqn] = _linear(actions, reader).having("input", value)
    return {**actions, **changed}


def _linear(actions: Actions, module: Module) -> Action:
    """Its action with a style that takes both options."""
    action = actions.get(module.fqn, Action("colwise"))
    return action.as_style(
        {ungathered: one for one, ungathered in _GATHERED.items()}.get(action.style, action.style)
    )


def split_around(draw: Draw, actions: Actions) -> Actions:
    """A part whose tokens are split before it and gathered behind it."""
    value = draw.random.choice(("Shard(1)", "Shard(1)", "Shard(0)"))
    part = draw.a_part()
    names = {module.fqn for module in part}
    changed: Actions = {}
    for module in part:
        if not any(source in names for source in module.sources) and module.kind is Kind.LINEAR:
            changed[module.fqn] = _linear(actions, module).having("input", value)
        elif module.kind is Kind.LINEAR and draw.random.random() < 0.8:
            changed[module.fqn] = _linear(actions, module).having("output", value)
    around = [one for one in part if one.kind is Kind.CONTAINER and one.fqn.count(".") == _depth(part)]
    prepared = Action("prepare_input_output", (("desired", value),))
    return {**actions, **changed, **{one.fqn: prepared for one in around}}


def prepare(draw: Draw, actions: Actions) -> Actions:
    """A container that redistributes its input, and perhaps its output."""
    readers = [one.fqn for one in draw.inventory.modules if one.kind is Kind.LINEAR]
    modules = draw.a_family((Kind.CONTAINER, Kind.OTHER))
    modules = [
        one
        for one in modules
        if any(fqn.startswith(f"{one.fqn}.") for fqn in readers)
        and (one.fqn not in actions or actions[one.fqn].style.startswith("prepare"))
    ]
    if not modules:
        return actions
    action = Action(draw.random.choice(_STYLES[Kind.CONTAINER]))
    for option in OPTIONS[action.style]:
        action = action.having(option, draw.value(option)) if draw.random.random() < 0.5 else action
    return {**actions, **{one.fqn: action for one in modules}}


def move_to_layers(draw: Draw, actions: Actions) -> Actions:
    """A part on shards of the sequence: gathered and scattered by its linear layers, not around them."""
    part = draw.a_part()
    names = {module.fqn for module in part}
    kept = {
        fqn: one for fqn, one in actions.items() if fqn not in names or not one.style.startswith("prepare")
    }
    read = {source for module in part for source in module.sources}
    for module in part:
        if module.kind is not Kind.LINEAR or module.fqn not in kept:
            continue
        if not any(source in names for source in module.sources):
            kept[module.fqn] = kept[module.fqn].having("input", "Shard(1)")
        if module.fqn not in read:
            kept[module.fqn] = kept[module.fqn].having("output", "Shard(1)")
    return kept


def take_from_another(draw: Draw, actions: Actions) -> Actions:
    """A part with the rules of another base."""
    names = {module.fqn for module in draw.a_part()}
    other = draw.random.choice(draw.bases).actions
    kept = {fqn: one for fqn, one in actions.items() if fqn not in names}
    return {**kept, **{fqn: one for fqn, one in other.items() if fqn in names}}


def _depth(modules: Sequence[Module]) -> int:
    return min(module.fqn.count(".") for module in modules)


_ON_WHOLE: tuple[Change, ...] = (
    *(leave_whole, leave_whole, gather, gather, gather, restyle, restyle_an_end, restyle_an_end),
    *(change_an_option, change_a_hand_over, change_a_hand_over, split_around, split_around, prepare),
    *(take_from_another, take_from_another),
)
_ON_SEQUENCE: tuple[Change, ...] = (
    *(leave_whole, leave_whole, leave_whole, gather, gather, restyle, restyle_an_end, restyle_an_end),
    *(change_an_option, change_a_hand_over, prepare, move_to_layers, move_to_layers, take_from_another),
)
