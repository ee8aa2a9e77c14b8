"""Likely corrections of patterns that match nothing, and whether they are certain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planc.checks.support.rule import Subject
from planc.plan.bind import Selection
from planc.plan.pattern import Pattern, parse_pattern
from planc.plan.spec import PatternRule
from planc.plan.style_actions import StyleAction
from planc.source import Span
from planc.syntax import ast

_PARAMETERS = ("weight", "bias")
_WRAPPERS = frozenset({"model", "base_model", "module", "_orig_mod", "_fsdp_wrapped_module"})
"""Modules that other tools put around a whole model."""
_BLOCKS = ("layers", "layer", "blocks", "block", "h", "decoder_layers")
"""The names that models give the list of their repeated blocks."""
_MEMBER = re.compile(r"\*|[0-9]+|\{[0-9., ]+\}")
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
_MAX_TRIED = 2000
"""Names that a pattern is matched against, part by part."""


def rewritten(selection: Selection, blocks: Sequence[str], *, of_parameters: bool) -> str | None:
    """Return the pattern that was most likely meant; None if no candidate is clear.

    The pattern lacks a prefix (`layers.*` in `model.layers.*`), has a prefix too much
    (`module.model.layers.*`) or a suffix (`q_proj.weight`), or uses another model's name for the blocks.
    A suffix is not too much in a pattern `of_parameters`.
    """
    text, names = selection.pattern.text, selection.names
    for candidate in (
        _with_prefix(selection.pattern, names),
        _without_prefix(selection.pattern, names),
        None if of_parameters else _without_parameter(selection.pattern, names),
        _with_blocks(selection.pattern, names, blocks),
    ):
        if candidate is not None and candidate != text:
            return candidate
    return None


def widens(written: str, meant: str) -> bool:
    """Whether a rewritten pattern selects what the written one would not: it has fewer segments.

    A wrapper around the whole model, such as `module.` of DDP, adds nothing to what a pattern selects.
    """
    if not written.endswith(f".{meant}"):
        return not meant.endswith(written)
    return not _WRAPPERS.issuperset(written.removesuffix(f".{meant}").split("."))


@dataclass(slots=True, eq=False)
class Beside:
    """The other rules in each pattern's block, looked up once for all patterns of a plan."""

    subject: Subject
    _owners: dict[int, tuple[int, PatternRule[Any]]]
    _takers: Mapping[int, Mapping[str, frozenset[int]]]

    @classmethod
    def of(cls, subject: Subject) -> Beside:
        owners = {
            id(pattern): (block, rule)
            for block, rules in enumerate(_blocks(subject))
            for rule in rules
            for pattern in rule.patterns
        }
        takers: dict[int, dict[str, set[int]]] = {}
        for selection in subject.bound.selections:
            block, rule = owners[id(selection.pattern)]
            names = takers.setdefault(block, {})
            for name in selection.matched:
                names.setdefault(name, set()).add(id(rule))
        frozen = {block: {name: frozenset(ids) for name, ids in one.items()} for block, one in takers.items()}
        return cls(subject, owners, frozen)

    def names_parameters(self, selection: Selection) -> bool:
        """Whether a pattern names parameters, as in `optimizer` and `freeze`."""
        _, owner = self._owners[id(selection.pattern)]
        plan = self.subject.plan
        rules = (*plan.optimizer.rules, *(plan.freeze.rules if plan.freeze else ()))
        return any(rule is owner for rule in rules)

    def is_clear(self, selection: Selection, text: str) -> bool:
        """Whether a rule with this pattern would be valid: it names nothing that another rule of its block
        names, and its style is for what it names."""
        block, owner = self._owners[id(selection.pattern)]
        meant = _parsed(text)
        if meant is None:
            return False
        takers = self._takers.get(block, {})
        matched = set(meant.select(selection.names)).difference(selection.matched)
        if any(takers.get(name, frozenset()) - {id(owner)} for name in matched):
            return False
        return not isinstance(owner.action, StyleAction) or all(
            module is not None and module.kind in owner.action.style.kinds
            for module in map(self.subject.inventory.get, matched)
        )


def _blocks(subject: Subject) -> Iterator[Sequence[PatternRule[Any]]]:
    """The rules of each block that has some."""
    plan = subject.plan
    blocks = (
        *(plan.tensor_parallel, plan.expert_parallel, plan.fsdp),
        *(plan.activation_checkpoint, plan.compile),
        *(plan.context_parallel, plan.optimizer, plan.freeze, plan.adapter),
    )
    return (block.rules for block in blocks if block is not None)


def _with_prefix(pattern: Pattern, names: tuple[str, ...]) -> str | None:
    """The pattern below the only module in which it matches."""
    anywhere = _parsed(f"**.{pattern.text}")
    first = pattern.segments[0]
    if anywhere is None or first.depth or any(option.text == "*" for option in first.alternatives):
        return None
    found: dict[str, None] = {}
    for name in anywhere.select(names)[:_MAX_TRIED]:
        parts = name.split(".")
        starts = (at for at in range(1, len(parts)) if pattern.matches(".".join(parts[at:])))
        found.update({_NUMBER.sub("*", ".".join(parts[:at])): None for at in starts})
    return f"{next(iter(found))}.{pattern.text}" if len(found) == 1 else None


def _without_prefix(pattern: Pattern, names: tuple[str, ...]) -> str | None:
    """The rest of the pattern, if the model has it at its top or inside one module."""
    if "*" in pattern.parts[0][1]:
        return None
    for start, first in pattern.parts[1:]:
        rest = _parsed(pattern.text[start:]) if "*" not in first else None
        if rest is None:
            continue
        found = rest.text if rest.select(names) else _with_prefix(rest, names)
        if found is not None:
            return found
    return None


def _without_parameter(pattern: Pattern, names: tuple[str, ...]) -> str | None:
    """The module, if the pattern names a parameter of it."""
    head, _, last = pattern.text.rpartition(".")
    is_named = last in _PARAMETERS and head.rpartition(".")[2].strip("*") != ""
    module = _parsed(head) if is_named else None
    return head if module is not None and module.select(names) else None


def _with_blocks(pattern: Pattern, names: tuple[str, ...], blocks: Sequence[str]) -> str | None:
    """The pattern with this model's only list of blocks in place of another model's."""
    parts = [text for _, text in pattern.parts]
    places = [at for at in range(len(parts) - 1) if parts[at] in _BLOCKS and _MEMBER.fullmatch(parts[at + 1])]
    if len(places) != 1 or len(blocks) != 1:
        return None
    meant = ".".join((blocks[0], *parts[places[0] + 1 :]))
    parsed = _parsed(meant)
    return meant if parsed is not None and parsed.select(names) else None


def _parsed(text: str) -> Pattern | None:
    found = parse_pattern(ast.Text(text, Span("", 1, 1, 1, 1)))
    return found if isinstance(found, Pattern) else None
