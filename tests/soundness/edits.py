"""Edits of a plan's tensor-parallel rules, all of a kind: what a slip of the hand could make of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.mutants.draft import Draft, Rule
from tests.mutants.layout_mutations import OPTIONS, STYLES, TP

PLACEMENTS = ("Replicate()", "Shard(1)", "Shard(-1)")
_ALIKE = (
    ("colwise", "colwise_gather_output", "rowwise", "rowwise_split_input", "replicate", "prepare_input"),
    ("embedding_rowwise", "embedding_colwise", "replicate"),
    ("sequence_parallel", "replicated_with_grad_allreduce", "replicate"),
)
"""Styles for linear layers, for embeddings, for norms."""
_BOTH_WAYS = "prepare_input_output"
"""No slip of the hand makes it of another style, so random plans go without."""
_ALL_LAYERS, _FIRST_LAYER, _LAST_LAYER = ".*.", ".0.", ".1."


@dataclass(frozen=True, slots=True)
class Edit:
    """A changed plan; `type` names what was changed, `note` how."""

    type: str
    note: str
    draft: Draft


def single_edits(draft: Draft, *, bare: Sequence[str] = ()) -> Iterator[Edit]:
    """Every edit of one rule: of all that it names, of one choice of its braces, of its last layer alone.

    `bare` are patterns that no rule names; each is given every style.
    """
    rules = draft.block(TP).rules
    for index, rule in enumerate(rules):
        for scope, rest, part in _scopes(rule):
            for type_name, changed in _changes(part):
                kept = (*rest, changed) if changed else rest
                note = f"{scope}: now {changed}" if changed else f"{scope}: without {part}"
                yield Edit(type_name, note, _with_rules(draft, (*rules[:index], *kept, *rules[index + 1 :])))
    for pattern, style in itertools.product(bare, STYLES):
        rule = Rule((pattern,), style)
        yield Edit("added", f"and {rule}", _with_rules(draft, (*rules, rule)))


def module_edits(draft: Draft, *, modules: Sequence[str]) -> Iterator[Edit]:
    """A rule more: every style, with everything that it takes, on each of the modules."""
    rules = draft.block(TP).rules
    for pattern, style in itertools.product(modules, (*STYLES, _BOTH_WAYS)):
        options = OPTIONS.get(style, ("input", "desired", "output") if style == _BOTH_WAYS else ())
        for values in itertools.product(*map(_values, options)):
            rule = Rule((pattern,), style, tuple(zip(options, values, strict=True)))
            yield Edit("added", f"and {rule}", _with_rules(draft, (*rules, rule)))


def double_edits(draft: Draft, first: str, second: str) -> Iterator[Edit]:
    """Every choice of styles and placements for two rules at once, named by the ends of their patterns."""
    rules = draft.block(TP).rules
    one, other = (
        next(index for index, rule in enumerate(rules) if rule.patterns[0].endswith(end))
        for end in (first, second)
    )
    for pair in itertools.product(_spellings(rules[one]), _spellings(rules[other])):
        chosen = dict(zip((one, other), pair, strict=True))
        changed = tuple(chosen.get(index, rule) for index, rule in enumerate(rules))
        yield Edit("double", f"now {pair[0]} and {pair[1]}", _with_rules(draft, changed))


def _scopes(rule: Rule) -> Iterator[tuple[str, tuple[Rule, ...], Rule]]:
    """(what is edited, rules for the rest, the rule that is edited)."""
    yield "all", (), rule
    pattern = rule.patterns[0]
    braces = re.search(r"\{([a-z_,]+)\}", pattern)
    choices = braces[1].split(",") if braces else []
    parts = {
        choice: replace(rule, patterns=(pattern.replace(braces[0], choice),)) for choice in choices if braces
    }
    for choice, part in parts.items():
        yield "one", tuple(other for name, other in parts.items() if name != choice), part
    if _ALL_LAYERS in pattern:
        first, last = (
            replace(rule, patterns=(pattern.replace(_ALL_LAYERS, layer),))
            for layer in (_FIRST_LAYER, _LAST_LAYER)
        )
        yield "layer", (first,), last


def _changes(rule: Rule) -> Iterator[tuple[str, Rule | None]]:
    """(type, the changed rule; None where it is dropped)."""
    yield "dropped", None
    for option in OPTIONS.get(rule.action, ()):
        for value in _values(option):
            if rule.argument(option) != value:
                yield "boundary", rule.with_argument(option, value)
        if rule.argument(option) is not None:
            kept = tuple(argument for argument in rule.arguments if argument[0] != option)
            yield "boundary", replace(rule, arguments=kept)
    for style in STYLES:
        if style != rule.action:
            kept = tuple(argument for argument in rule.arguments if argument[0] in OPTIONS.get(style, ()))
            yield "style", replace(rule, action=style, arguments=kept)


def _spellings(rule: Rule) -> Iterator[Rule]:
    """The rule with every style for modules of its kind, and everything that the style takes."""
    for style in next(group for group in _ALIKE if rule.action in group):
        options = OPTIONS.get(style, ())
        for values in itertools.product(*map(_values, options)):
            yield replace(rule, action=style, arguments=tuple(zip(options, values, strict=True)))


def _values(option: str) -> tuple[str, ...]:
    return ("0", "1", "2") if option == "sequence_dim" else PLACEMENTS


def _with_rules(draft: Draft, rules: tuple[Rule, ...]) -> Draft:
    return draft.edit(TP, lambda block: replace(block, rules=rules))
