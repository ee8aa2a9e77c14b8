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

    `around` is what surrounds the offsets inside their part, None where other braces do. `others` are choices
    that the brace has.
    """

    start: int
    end: int
    wanted: str
    parent: str
    children: tuple[str, ...]
    around: tuple[str, str] | None = ("", "")
    others: tuple[str, ...] = ()
    is_range: bool = False
    is_container: bool = False


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each pattern without a match, or for each choice in a brace without one."""
    for selection in subject.bound.selections:
        gaps = _unused_choices(selection) if selection.matched else _dead_end(selection)
        yield from (_report(selection.pattern, gap) for gap in gaps)


def _report(pattern: Pattern, gap: Gap) -> Diagnostic:
    near = _nearest(gap)
    span = pattern.source.part(gap.start, gap.end)
    nothing = f"there is nothing below `{gap.parent}`"
    return CODE.at(
        span,
        _label(gap),
        notes=(f"candidates: {_listed(gap.children)}" if gap.children else nothing,),
        help=f"did you mean `{near}`?" if near else None,
        fix=Fix(span, near, is_safe=not gap.is_range) if near else None,
    )


def _label(gap: Gap) -> str:
    if gap.is_container:
        return f"`{gap.wanted}` has nothing of its own that a rule could name here"
    if gap.parent.endswith("**"):
        return f"no `{gap.wanted}` anywhere"
    return f"no child `{gap.wanted}` under `{gap.parent}`" if gap.parent else f"no `{gap.wanted}`"


def _nearest(gap: Gap) -> str | None:
    """What to write in place of the faulty part."""
    if gap.is_container:
        return f"{gap.wanted}.**"
    if gap.is_range:
        return runs([int(child) for child in gap.children if child.isdecimal()]) or None
    if gap.around is None or gap.wanted.isdecimal():
        return None
    core = gap.wanted.strip("*")
    found = closest(core, gap.children)
    prefix, suffix = gap.around
    if found is None or not (found.startswith(prefix) and found.endswith(suffix)):
        return None
    if core != gap.wanted:
        return gap.wanted.replace(core, found)
    middle = found[len(prefix) : len(found) - len(suffix)]
    return middle if middle and middle not in gap.others else None


def _listed(children: Sequence[str]) -> str:
    numbers = [int(child) for child in children if child.isdecimal()]
    names = [child for child in children if not child.isdecimal()]
    shown = [runs(numbers)] if numbers else []
    shown += names[:_MAX_CANDIDATES]
    more = f" and {len(names) - _MAX_CANDIDATES} more" if len(names) > _MAX_CANDIDATES else ""
    return f"{', '.join(shown)}{more}"


def _dead_end(selection: Selection) -> Iterator[Gap]:
    """The first part of a pattern that leads nowhere; each choice of it, if it has some."""
    pattern, prefixes = selection.pattern, _prefixes(selection.names)
    for index, (start, text) in enumerate(pattern.parts):
        if any(pattern.matches_prefix(name, index + 1) for name in prefixes):
            continue
        if len(pattern.segments[index].alternatives) > 1:
            yield from _choices(pattern, index, pattern.segments[index].alternatives, prefixes)
        else:
            children = _children(pattern, index, prefixes)
            yield Gap(start, start + len(text), text, _parent(pattern, index), children)
        return
    # Every part leads somewhere, but not to a name: the pattern stops at a container.
    start, text = pattern.parts[-1]
    children = _children(pattern, len(pattern.parts), prefixes)
    parent = _parent(pattern, len(pattern.parts) - 1)
    yield Gap(start, start + len(text), text, parent, children, is_container=True)


def _unused_choices(selection: Selection) -> Iterator[Gap]:
    """Each choice of a brace by which nothing matches."""
    pattern = selection.pattern
    # What was matched shows most choices to be in use, and is a small part of all names.
    if "{" not in pattern.text or not any(pattern.unmatched(selection.matched)):
        return
    unmatched = tuple(pattern.unmatched(selection.names))
    prefixes = _prefixes(selection.names)
    for index, segment in enumerate(pattern.segments):
        options = [option for option in segment.alternatives if option in unmatched]
        yield from _choices(pattern, index, options, prefixes)


def _choices(
    pattern: Pattern, index: int, options: Sequence[Alternative], prefixes: Sequence[str]
) -> Iterator[Gap]:
    """A gap for each choice as it is written; the numbers of one range are one."""
    by_place: dict[tuple[int, int], list[Alternative]] = {}
    for option in options:
        by_place.setdefault((option.start, option.end), []).append(option)
    brace = _BRACE.match(pattern.parts[index][1])
    around = (brace.group(1), brace.group(2)) if brace else None
    alternatives = pattern.segments[index].alternatives
    others = tuple(pattern.text[other.start : other.end] for other in alternatives)
    parent, children = _parent(pattern, index), _children(pattern, index, prefixes)
    for (start, end), same in by_place.items():
        numbers = [int(option.text) for option in same if option.is_range and option.text.isdecimal()]
        if numbers:
            yield Gap(start, end, runs(numbers), parent, children, is_range=True)
        else:
            yield Gap(start, end, same[0].text, parent, children, around, others)


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
    is_deep = index > 0 and pattern.segments[index - 1].depth
    for name in prefixes:
        parent, _, last = name.rpartition(".")
        if is_deep and last.isdecimal():
            continue  # anywhere in the model, numbers tell nothing
        if (parent == "" and index == 0) or (parent and pattern.matches_prefix(parent, index)):
            found[last] = None
    return tuple(found)


RULE = Rule((CODE,), check)
