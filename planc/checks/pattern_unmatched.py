"""Patterns, and alternatives in them, that match nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from planc.checks.families import runs
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Fix
from planc.diagnostics.suggest import closest
from planc.plan.bind import Selection
from planc.plan.pattern import Alternative, Pattern

CODE = Code("P203", "pattern-unmatched", "a pattern matches nothing")

_MAX_CANDIDATES = 8
_BRACE = re.compile(r"([^{}]*)\{[^{}]*\}([^{}]*)\Z")


@dataclass(frozen=True, slots=True)
class Gap:
    """Where a pattern stops matching: offsets [start, end) of its text, the parent so far, the names there.

    `prefix` and `suffix` surround the offsets inside their segment; `others` are choices that the brace
    already has.
    """

    start: int
    end: int
    wanted: str
    parent: str
    children: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""
    others: tuple[str, ...] = ()


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each pattern without a match, or for each choice in a brace without one."""
    for selection in subject.bound.selections:
        gaps = _choice_gaps(selection) if selection.matched else [_gap(selection)]
        yield from (_report(selection.pattern, gap) for gap in gaps)


def _report(pattern: Pattern, gap: Gap) -> Diagnostic:
    where = f" under `{gap.parent}`" if gap.parent else ""
    near = _nearest(gap)
    span = pattern.source.part(gap.start, gap.end)
    return CODE.at(
        span,
        f"no `{gap.wanted}`{where}",
        notes=(f"candidates: {_listed(gap.children)}",) if gap.children else ("there is nothing below it",),
        help=f"did you mean `{near}`?" if near else None,
        fix=Fix(span, near, is_safe=not gap.wanted[0].isdecimal()) if near else None,
    )


def _nearest(gap: Gap) -> str | None:
    """What to write in place of the faulty part."""
    numbers = [int(child) for child in gap.children if child.isdecimal()]
    if gap.wanted[0].isdecimal():
        return runs(numbers) if gap.prefix or ".." in gap.wanted else None
    found = closest(gap.wanted, gap.children)
    if found is None or not (found.startswith(gap.prefix) and found.endswith(gap.suffix)):
        return None
    middle = found[len(gap.prefix) : len(found) - len(gap.suffix)]
    return middle if middle and middle not in gap.others else None


def _listed(children: Sequence[str]) -> str:
    numbers = [int(child) for child in children if child.isdecimal()]
    names = [child for child in children if not child.isdecimal()]
    shown = [runs(numbers)] if numbers else []
    shown += names[:_MAX_CANDIDATES]
    more = f" and {len(names) - _MAX_CANDIDATES} more" if len(names) > _MAX_CANDIDATES else ""
    return f"{', '.join(shown)}{more}"


def _gap(selection: Selection) -> Gap:
    """The first segment of a pattern that leads nowhere."""
    pattern = selection.pattern
    prefixes = _prefixes(selection.names)
    for index, (start, text) in enumerate(pattern.parts):
        if any(pattern.matches_prefix(name, index + 1) for name in prefixes):
            continue
        children = _children(pattern, index, prefixes)
        return Gap(start, start + len(text), text, _parent(pattern, index), children)
    # Every part leads somewhere, but not to a name: the pattern stops at a container.
    start, text = pattern.parts[-1]
    last = len(pattern.parts)
    return Gap(start, start + len(text), text, _parent(pattern, last - 1), _children(pattern, last, prefixes))


def _choice_gaps(selection: Selection) -> Iterator[Gap]:
    """Each choice of a brace by which nothing matches; the numbers of one range together."""
    pattern = selection.pattern
    if "{" not in pattern.text:
        return
    unmatched: dict[tuple[int, int], list[Alternative]] = {}
    for option in pattern.unmatched(selection.names):
        unmatched.setdefault((option.start, option.end), []).append(option)
    for (start, end), options in unmatched.items():
        index = next(i for i, (at, text) in enumerate(pattern.parts) if at <= start < at + max(1, len(text)))
        children = _children(pattern, index, _prefixes(selection.names))
        written = pattern.text[start:end]
        if options[0].is_range:
            missing = runs([int(option.text) for option in options if option.text.isdecimal()]) or written
            yield Gap(start, end, missing, _parent(pattern, index), children, prefix="range")
            continue
        brace = _BRACE.match(pattern.parts[index][1])
        prefix, suffix = (brace.group(1), brace.group(2)) if brace else ("", "")
        options_here = pattern.segments[index].alternatives
        others = tuple(pattern.text[other.start : other.end] for other in options_here)
        yield Gap(start, end, options[0].text, _parent(pattern, index), children, prefix, suffix, others)


def _parent(pattern: Pattern, index: int) -> str:
    """The pattern's text before a part."""
    return ".".join(text for _, text in pattern.parts[:index])


def _prefixes(names: Iterable[str]) -> tuple[str, ...]:
    """Every name and every module on the way to it, in order."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        found.update((".".join(parts[:depth]), None) for depth in range(1, len(parts) + 1))
    return tuple(found)


def _children(pattern: Pattern, index: int, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Names one step below what the first `index` parts match, each once."""
    found: dict[str, None] = {}
    for name in prefixes:
        parent, _, last = name.rpartition(".")
        if (parent == "" and index == 0) or (parent and pattern.matches_prefix(parent, index)):
            found[last] = None
    return tuple(found)


RULE = Rule((CODE,), check)
