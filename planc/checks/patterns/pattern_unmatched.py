"""Patterns, and alternatives in them, that match nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planc.checks.patterns.pattern_slips import Beside, rewritten, widens
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Applicability, Code, Diagnostic, Fix
from planc.diagnostics.suggest import closest, is_slip
from planc.layouts.families import runs
from planc.plan.bind import Selection
from planc.plan.pattern import Pattern, parse_pattern
from planc.plan.segments import Alternative
from planc.record import record
from planc.vocab import outwards, parent_of

CODE = Code("P203", "pattern-unmatched", "a pattern matches nothing")

_MAX_CANDIDATES = 8
_NUMBERS = re.compile(r"([0-9]+)(?:-|_to_|to)([0-9]+)")
_BRACE = re.compile(r"([^{}]*)\{[^{}]*\}([^{}]*)\Z")


@record
class Gap:
    """The part where a pattern fails: offsets [start, end) of its text, the parent so far, the names there.

    `around` is the text around the offsets inside their part, None if it has other braces. `others` are
    alternatives in the same braces. `behind` is an alternative at the offsets that exists: what it needs
    behind it does not.
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
    behind: str = ""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each pattern without a match, or for each alternative in braces without a match."""
    own_file = subject.plan.span("").file
    beside: Beside | None = None
    for selection in subject.bound.selections:
        if (tied := _tied(subject, selection)) is not None:
            yield tied
            continue
        if selection.matched:
            gaps = tuple(_unused_choices(selection))
        else:
            gaps = tuple(_dead_end(selection.pattern, _prefixes(selection.names)))
        if not gaps:
            continue
        beside = beside or Beside.of(subject)
        # In an included file, a name may be right for another plan's model.
        is_own = selection.pattern.source.span.file == own_file
        yield from _reports(beside, selection, gaps, is_own=is_own)


def _tied(subject: Subject, selection: Selection) -> Diagnostic | None:
    """The finding on a pattern for a tied parameter, which rules must name by its owner."""
    if selection.matched:
        return None
    pattern = selection.pattern
    for owner, *aliases in subject.inventory.ties:
        for alias in aliases:
            if pattern.matches(alias) or pattern.matches(parent_of(alias)):
                text = f"`{alias}` is tied to `{owner}`: they are one parameter"
                fix = Fix(pattern.source.part(0, len(pattern.text)), owner, Applicability.UNSAFE)
                return CODE.at(pattern.source.span, text, help=f"write `{owner}`", fix=fix)
    return None


def _reports(beside: Beside, selection: Selection, gaps: Sequence[Gap], *, is_own: bool) -> Findings:
    """A finding for each gap; only one if all alternatives in braces seem to be slips of one name."""
    near = [_near(gap) for gap in gaps]
    if len(gaps) > 1 and near[0] is not None and len(set(near)) == 1:
        first = _whole_segment(selection.pattern, gaps)
        yield _report(beside, selection, first, _near(first), is_safe=False)
        return
    meant = None
    if not selection.matched and not any(
        one and _leads(selection, gap, one) for gap, one in zip(gaps, near, strict=True)
    ):
        of_parameters = beside.names_parameters(selection)
        meant = rewritten(selection, beside.subject.inventory.blocks, of_parameters=of_parameters)
    for gap, one in zip(gaps, near, strict=True):
        if meant is not None:
            yield _rewrite(beside, selection, gap, meant, is_own=is_own)
            return
        is_safe = is_own and not gap.is_range and not gap.is_container
        yield _report(beside, selection, gap, one, is_safe=is_safe)


def _whole_segment(pattern: Pattern, gaps: Sequence[Gap]) -> Gap:
    """The gap for a whole part with braces of which no alternative matches."""
    start, text = next((start, text) for start, text in reversed(pattern.parts) if start <= gaps[0].start)
    return replace(gaps[0], start=start, end=start + len(text), around=("", ""), others=())


def _report(beside: Beside, selection: Selection, gap: Gap, near: str | None, *, is_safe: bool) -> Diagnostic:
    same, pattern = _same_but_for_case(gap), selection.pattern
    of_parameters = beside.names_parameters(selection)
    span = pattern.source.part(gap.start, gap.end)
    nothing = f"`{gap.parent}` has no children"
    children = tuple(dict.fromkeys((*(same[0] if same else ()), *gap.children)))
    fix = None
    if near is not None:
        is_sure = is_safe and _is_slip(gap, near) and beside.is_clear(selection, _with(pattern, gap, near))
        fix = Fix(span, near, Applicability.of(is_safe=is_sure))
    return CODE.at(
        span,
        _label(gap, of_parameters=of_parameters),
        notes=(f"candidates: {_listed(children)}" if children else nothing,),
        help=f"did you mean `{near}`?" if near else _other_help(beside.subject, gap, pattern, of_parameters),
        fix=fix,
    )


def _rewrite(beside: Beside, selection: Selection, gap: Gap, meant: str, *, is_own: bool) -> Diagnostic:
    """A finding on a pattern that would match if it were written differently."""
    pattern = selection.pattern
    whole = pattern.source.part(0, len(pattern.text))
    of_parameters = beside.names_parameters(selection)
    # Another model's name for its blocks belongs to that model's plan. What a group of parameters has changes
    # training without another finding.
    is_sure = is_own and not of_parameters and not widens(pattern.text, meant)
    is_safe = is_sure and beside.is_clear(selection, meant)
    return CODE.at(
        pattern.source.part(gap.start, gap.end),
        _label(gap, of_parameters=of_parameters),
        notes=(f"candidates: {_listed(gap.children)}",) if gap.children else (),
        help=f"did you mean `{meant}`?",
        fix=Fix(whole, meant, Applicability.of(is_safe=is_safe)),
    )


def _with(pattern: Pattern, gap: Gap, near: str) -> str:
    """The pattern with other text in a gap."""
    return f"{pattern.text[: gap.start]}{near}{pattern.text[gap.end :]}"


def _leads(selection: Selection, gap: Gap, near: str) -> bool:
    """Whether a pattern with other text in a gap matches anything."""
    pattern = parse_pattern(replace(selection.pattern.source, value=_with(selection.pattern, gap, near)))
    return isinstance(pattern, Pattern) and bool(pattern.select(selection.names))


def _is_slip(gap: Gap, near: str) -> bool:
    """Whether a name is a typo, and not another name."""
    prefix, suffix = gap.around or ("", "")
    is_choice = gap.wanted.startswith(prefix) and gap.wanted.endswith(suffix)
    meant = f"{prefix}{near}{suffix}" if is_choice else near
    return is_slip(gap.wanted, meant)


def _other_help(subject: Subject, gap: Gap, pattern: Pattern, of_parameters: bool) -> str | None:
    """The help if no name is similar."""
    if gap.behind:
        return f"leave out `{gap.behind}`, or name what it has"
    if of_parameters and (usual := _usual_group(subject, gap, pattern)):
        return usual
    if gap.wanted.lstrip("-").isdecimal() and gap.children:
        return f"use a number that exists: {_listed(gap.children)}"
    if match := _NUMBERS.fullmatch(gap.wanted):
        return f"write the range as `{{{match[1]}..{match[2]}}}`"
    if not gap.children:
        is_named = gap.parent.rpartition(".")[2].strip("*") != "" and not of_parameters
        return f"write `{gap.parent}`" if is_named else None
    return f"name one of the candidates, or run `planc inventory {subject.plan.model.hf}` to list all modules"


def _usual_group(subject: Subject, gap: Gap, pattern: Pattern) -> str | None:
    """The help for a pattern of what is usually left out of weight decay: biases and norms."""
    wanted, last = gap.wanted.lower(), pattern.parts[-1][1].strip("*").lower()
    names = [fqn.lower() for fqn, _, _ in subject.inventory.parameters()]
    if "bias" in (wanted.strip("*"), last) and not any("bias" in name for name in names):
        return f"the model has no biases; remove {_removed(subject, gap, pattern)}"
    if "norm" in wanted and any("norm" in name for name in names):
        return "write `**.*norm*` for all norms"
    return None


def _removed(subject: Subject, gap: Gap, pattern: Pattern) -> str:
    """Name what to remove of a rule that matches something the model does not have."""
    if gap.others:
        return f"`{gap.wanted}`"
    freeze = subject.plan.freeze
    rules = (*subject.plan.optimizer.rules, *(freeze.rules if freeze else ()))
    owner = next(rule for rule in rules if pattern in rule.patterns)
    return "the rule" if len(owner.patterns) == 1 else f'`"{pattern.text}"`'


def _label(gap: Gap, *, of_parameters: bool) -> str:
    if gap.is_container:
        return f"`{gap.wanted}` has no parameters of its own"
    if gap.parent.endswith("**"):
        return f"no {'parameter or module' if of_parameters else 'module'} is named `{gap.wanted}`"
    return f"no child `{gap.wanted}` under `{gap.parent}`" if gap.parent else f"no `{gap.wanted}`"


def _near(gap: Gap) -> str | None:
    """The replacement of the faulty part."""
    same = _same_but_for_case(gap)
    return same[1] if same else _nearest(gap)


def _nearest(gap: Gap) -> str | None:
    if gap.is_container:
        return f"{gap.wanted}.**"
    if gap.is_range:
        return runs([int(child) for child in gap.children if child.isdecimal()]) or None
    if gap.around is None or gap.wanted.isdecimal():
        return None
    core = gap.wanted.strip("*")
    name = closest(core, gap.children)
    prefix, suffix = gap.around
    if name is None or not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    if core != gap.wanted:
        return gap.wanted.replace(core, name)
    middle = name[len(prefix) : len(name) - len(suffix)]
    return middle if middle and middle not in gap.others else None


def _same_but_for_case(gap: Gap) -> tuple[tuple[str, ...], str] | None:
    """Names that match in another letter case, with the replacement; None without such names."""
    if gap.is_container or gap.is_range or gap.around != ("", ""):
        return None
    wanted, core = Alternative(gap.wanted.lower(), 0, 0), gap.wanted.strip("*").lower()
    names = tuple(child for child in gap.children if wanted.matches(child.lower()))
    starts = ((name, name.lower().find(core)) for name in names)
    written = {name[start : start + len(core)] for name, start in starts if start >= 0}
    if len(written) != 1 or not core:
        return None
    return names, gap.wanted.replace(gap.wanted.strip("*"), written.pop())


def _listed(children: Sequence[str]) -> str:
    numbers = [int(child) for child in children if child.isdecimal()]
    names = [child for child in children if not child.isdecimal()]
    shown = [runs(numbers)] if numbers else []
    shown += names[:_MAX_CANDIDATES]
    more = f" and {len(names) - _MAX_CANDIDATES} more" if len(names) > _MAX_CANDIDATES else ""
    return f"{', '.join(shown)}{more}"


def _dead_end(pattern: Pattern, prefixes: tuple[str, ...]) -> Iterator[Gap]:
    """The first part of a pattern without a match; each alternative of it, if it has some."""
    for index, (start, text) in enumerate(pattern.parts):
        if pattern.select(prefixes, num_segments=index + 1):
            continue
        if len(pattern.segments[index].alternatives) > 1:
            yield from _choices(pattern, index, pattern.segments[index].alternatives, prefixes)
        else:
            yield _only(pattern, index, start, text, prefixes)
        return
    # Every part matches, but the whole is not a name: the pattern ends at a container.
    start, text = pattern.parts[-1]
    children = _children(pattern, len(pattern.parts), prefixes)
    parent = _parent(pattern, len(pattern.parts) - 1)
    yield Gap(start, start + len(text), text, parent, children, is_container=True)


def _only(pattern: Pattern, index: int, start: int, text: str, prefixes: tuple[str, ...]) -> Gap:
    """The gap at a part that reads one way, whatever braces it is written with."""
    (alternative,) = pattern.segments[index].alternatives
    # With several braces, the one with the slip is unknown.
    around = ("", "") if text.count("{") < 2 else None
    children = _children(pattern, index, prefixes)
    return Gap(start, start + len(text), alternative.text, _parent(pattern, index), children, around)


def _unused_choices(selection: Selection) -> Iterator[Gap]:
    """Each alternative in braces without a match."""
    pattern = selection.pattern
    # The matches are few of all names, and show most alternatives to be in use.
    if "{" not in pattern.text or not any(pattern.unmatched(selection.matched)):
        return
    unmatched = tuple(pattern.unmatched(selection.names))
    prefixes = _prefixes(selection.names)
    for index, segment in enumerate(pattern.segments):
        options = [option for option in segment.alternatives if option in unmatched]
        yield from _choices(pattern, index, options, prefixes)


def _choices(
    pattern: Pattern, index: int, options: Sequence[Alternative], prefixes: tuple[str, ...]
) -> Iterator[Gap]:
    """A gap for each alternative as written; the numbers of one range are one."""
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
        elif any(same[0].matches(child) for child in children):
            yield _behind(pattern, index, same[0], prefixes)
        else:
            yield Gap(start, end, same[0].text, parent, children, around, others)


def _behind(pattern: Pattern, index: int, option: Alternative, prefixes: tuple[str, ...]) -> Gap:
    """The gap at an alternative that exists, and has nothing that the next parts match."""
    start, text = pattern.parts[index]
    alone = f"{pattern.text[:start]}{option.text}{pattern.text[start + len(text) :]}"
    reduced = parse_pattern(replace(pattern.source, value=alone))
    assert isinstance(reduced, Pattern), "a pattern with one of its alternatives is one"
    first = next(_dead_end(reduced, prefixes))
    return replace(first, start=option.start, end=option.end, around=None, behind=option.text)


def _parent(pattern: Pattern, index: int) -> str:
    """The pattern's text before a part."""
    return ".".join(text for _, text in pattern.parts[:index])


@functools.lru_cache(maxsize=8)
def _prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Every name and every module on the way to it, in order: the same for many patterns."""
    found: dict[str, None] = {}
    for name in names:
        found.update(dict.fromkeys(reversed(outwards(name))))
    return tuple(found)


def _children(pattern: Pattern, index: int, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Names one step below what the first `index` parts match, each once."""
    parents = pattern.select(prefixes, num_segments=index) if index else ("",)
    is_deep = index > 0 and pattern.segments[index - 1].depth
    below = _by_parent(prefixes)
    found = sorted(child for parent in parents for child in below.get(parent, ()))
    # Without a parent, numbers are not informative.
    names = (name for _, name in found if not (is_deep and name.isdecimal()))
    return tuple(dict.fromkeys(names))


@functools.lru_cache(maxsize=8)
def _by_parent(prefixes: tuple[str, ...]) -> dict[str, list[tuple[int, str]]]:
    """The children of each name with their places among all names."""
    found: dict[str, list[tuple[int, str]]] = {}
    for place, name in enumerate(prefixes):
        parent, _, last = name.rpartition(".")
        found.setdefault(parent, []).append((place, last))
    return found
