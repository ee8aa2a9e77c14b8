"""Glob patterns over dotted names: `*` inside a segment, `**` any depth, `{a,b}`, `{0..3}`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Generic, TypeVar

from planc.plan.segments import Alternative, Choice, Segment
from planc.record import record
from planc.source import Span
from planc.syntax import ast


@record
class _Tree:
    """Names by their parts: a thousand patterns over a thousand names do not make a million comparisons."""

    children: dict[str, _Tree] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    """The indices of the name that ends here among the names."""


@functools.lru_cache(maxsize=8)
def _tree(names: tuple[str, ...]) -> _Tree:
    """Every pattern of a plan is held against the same few lists of names."""
    root = _Tree()
    for position, name in enumerate(names):
        node = root
        for part in name.split("."):
            if part not in node.children:
                node.children[part] = _Tree()
            node = node.children[part]
        node.positions.append(position)
    return root


def fitting(segments: Sequence[Segment], names: tuple[str, ...]) -> Iterator[int]:
    """The positions of the names that match, in no order.

    `ways` are how many segments may have been taken on the way to a node: several, where `**` allows.
    """
    # One `**` says as much as several in a row, which would make many ways.
    segments = [
        *segments[:1],
        *(after for one, after in pairwise(segments) if not (one.depth and after.depth)),
    ]
    last = len(segments)
    known: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = {}
    todo: list[tuple[_Tree, tuple[int, ...]]] = [(_tree(names), _with_depths(segments, {0}))]
    while todo:
        node, ways = todo.pop()
        if last in ways:
            yield from node.positions
        if len(ways) == 1 and ways[0] < last and (exact := segments[ways[0]].exact) is not None:
            after = _with_depths(segments, {ways[0] + 1})
            shorter, longer = sorted((exact, node.children), key=len)
            todo.extend((node.children[part], after) for part in shorter if part in longer)
            continue
        for part, child in node.children.items():
            if (ways, part) not in known:
                known[ways, part] = _with_depths(segments, _after(segments, ways, part))
            if known[ways, part]:
                todo.append((child, known[ways, part]))


def _after(segments: Sequence[Segment], ways: tuple[int, ...], part: str) -> set[int]:
    """Return the numbers of segments that may have been taken once a part is taken too."""
    counts = set()
    for num_taken in ways:
        if num_taken == len(segments):
            continue
        if segments[num_taken].depth:
            counts.add(num_taken)
        elif segments[num_taken].matches(part):
            counts.add(num_taken + 1)
    return counts


def _with_depths(segments: Sequence[Segment], ways: set[int]) -> tuple[int, ...]:
    """The ways with those that a `**` adds, which may take no part at all."""
    ways |= {taken + 1 for taken in ways if taken < len(segments) and segments[taken].depth}
    return tuple(ways)


MAX_SEGMENTS = 64
MAX_ALTERNATIVES = 10_000
"""The limit for one pattern, braces multiplied out."""

_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,99})\.\.(0|[1-9][0-9]{0,99})\Z")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_*-]")

Action = TypeVar("Action", covariant=True)

Fault = tuple[int, int, str]
"""Offsets [start, end) in the pattern's text, and what is wrong there."""


@record
class Pattern:
    """A parsed pattern; `text` is as written, `source` its node."""

    text: str
    source: ast.Text
    segments: tuple[Segment, ...]

    def matches(self, name: str) -> bool:
        return _matches(self.segments, name.split("."))

    @property
    def parts(self) -> tuple[tuple[int, str], ...]:
        """(offset, text) of each segment, as written."""
        return tuple(_split(self.text))

    @property
    def num_alternatives(self) -> int:
        return sum(len(segment.alternatives) for segment in self.segments)

    def select(self, names: Sequence[str], *, num_segments: int | None = None) -> tuple[str, ...]:
        """The names that match, in their order; given a number, those that so many segments match."""
        positions = fitting(self.segments[:num_segments], tuple(names))
        return tuple(names[position] for position in sorted(positions))

    def unmatched(self, names: Sequence[str]) -> Iterator[Alternative]:
        """The first alternative of each choice in a brace by which no name matches."""
        unused = {
            choice
            for segment in self.segments
            for option in segment.alternatives
            for choice in option.choices
        }
        # Not by `select`: these names are asked once, and their tree would take longer than they do.
        for parts in (name.split(".") for name in names if self.matches(name)):
            for segment, part in _taken(self.segments, parts):
                for option in segment.fitting(part):
                    unused.difference_update(option.choices)
        for segment in self.segments:
            for option in segment.alternatives:
                if len(segment.alternatives) > 1 and not unused.isdisjoint(option.choices):
                    unused.difference_update(option.choices)
                    yield option


@record
class PatternRule(Generic[Action]):
    """`pattern -> action`, or a list of patterns."""

    patterns: tuple[Pattern, ...]
    action: Action
    override: bool
    span: Span
    action_span: Span
    level: int = 0
    """The layer that the rule comes from: an override of a higher layer wins."""


def _matches(segments: Sequence[Segment], parts: Sequence[str]) -> bool:
    """Greedy matching with one point of return, as for `*` in file globs: no exponential case."""
    # The last parts of names differ most: asking for them first turns most names down at once.
    last = segments[-1] if segments else None
    if last is None or not (last.depth or last.matches(parts[-1])):
        return False
    at_segment = at_part = 0
    back: tuple[int, int] | None = None
    while at_part < len(parts):
        segment = segments[at_segment] if at_segment < len(segments) else None
        if segment is not None and segment.depth:
            back = (at_segment, at_part)
            at_segment += 1
        elif segment is not None and segment.matches(parts[at_part]):
            at_segment, at_part = at_segment + 1, at_part + 1
        elif back is not None:
            back = (back[0], back[1] + 1)
            at_segment, at_part = back[0] + 1, back[1]
        else:
            return False
    return all(segment.depth for segment in segments[at_segment:])


def _taken(segments: Sequence[Segment], parts: Sequence[str]) -> Iterator[tuple[Segment, str]]:
    """Each (segment, part) that meet in some way of matching a name that is known to match.

    With one `**` or none there is one way. With more, those ways are found from both ends.
    """
    depths = [index for index, segment in enumerate(segments) if segment.depth]
    if len(depths) < 2:
        head = depths[0] if depths else len(segments)
        tail = segments[head + 1 :]
        yield from zip(segments[:head], parts[:head], strict=True)
        yield from zip(tail, parts[len(parts) - len(tail) :], strict=True)
        return
    fits = [[not s.depth and s.matches(part) for part in parts] for s in segments]
    before = _reachable(segments, fits, len(parts))
    after = _reachable(segments[::-1], [row[::-1] for row in fits[::-1]], len(parts))
    for i, segment in enumerate(segments):
        for j, part in enumerate(parts):
            if before[i][j] and fits[i][j] and after[len(segments) - i - 1][len(parts) - j - 1]:
                yield segment, part


def _reachable(
    segments: Sequence[Segment], fits: Sequence[Sequence[bool]], num_parts: int
) -> list[list[bool]]:
    """[i][j]: whether the first i segments can match the first j parts."""
    table = [[j == 0 for j in range(num_parts + 1)]]
    for segment, row in zip(segments, fits, strict=True):
        previous = table[-1]
        current: list[bool] = []
        for j in range(num_parts + 1):
            if segment.depth:
                current.append(previous[j] or (j > 0 and current[j - 1]))
            else:
                current.append(j > 0 and previous[j - 1] and row[j - 1])
        table.append(current)
    return table


def parse_pattern(source: ast.Text) -> Pattern | Fault:
    """A pattern, or the offsets and the reason of what is wrong with it."""
    fault = _brace_fault(source.value)
    if fault is not None:
        return fault
    segments: list[Segment] = []
    for start, text in _split(source.value):
        if text == "**":
            segments.append(Segment((), depth=True))
            continue
        segment = _segment(text, start)
        if isinstance(segment, tuple):
            return segment
        segments.append(segment)
    if len(segments) > MAX_SEGMENTS:
        return (0, len(source.value), f"more than {MAX_SEGMENTS} parts")
    pattern = Pattern(source.value, source, tuple(segments))
    if pattern.num_alternatives > MAX_ALTERNATIVES:
        return (0, len(source.value), f"more than {MAX_ALTERNATIVES} alternatives")
    return pattern


def _brace_fault(text: str) -> Fault | None:
    opened: int | None = None
    for offset, character in enumerate(text):
        if character == "{":
            if opened is not None:
                return (offset, offset + 1, "braces can't nest")
            opened = offset
        elif character == "}":
            if opened is None:
                return (offset, offset + 1, "no brace is open here")
            opened = None
    return (opened, opened + 1, "this brace is never closed") if opened is not None else None


def _split(text: str) -> Iterator[tuple[int, str]]:
    """(offset, segment) at the dots outside braces."""
    start = depth = 0
    for offset, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "." and depth == 0:
            yield start, text[start:offset]
            start = offset + 1
    yield start, text[start:]


def _segment(text: str, start: int) -> Segment | Fault:
    """A segment whose braces are known to be paired."""
    whole = (start, start + max(1, len(text)))
    if not text:
        return (*whole, "a name is missing here")
    options: list[tuple[str, tuple[Choice, ...]]] = [("", ())]
    position = 0
    for brace in _BRACE.finditer(text):
        literal = text[position : brace.start()]
        choices = _literal_fault(literal, start + position) or _choices(
            brace.group(1), start + brace.start(1)
        )
        if isinstance(choices, tuple):
            return choices
        if len(options) * len(choices) > MAX_ALTERNATIVES:
            return (*whole, f"more than {MAX_ALTERNATIVES} alternatives")
        options = [
            (f"{read}{literal}{choice.text}", (*taken, choice))
            for read, taken in options
            for choice in choices
        ]
        position = brace.end()
    literal = text[position:]
    fault = _literal_fault(literal, start + position)
    if fault is not None:
        return fault
    alternatives = tuple(_alternative(read + literal, taken, whole) for read, taken in options)
    if any("**" in option.text for option in alternatives):
        return (*whole, "`**` must be a whole part, between dots")
    exact = {option.text: option for option in alternatives}
    if len(exact) < len(alternatives):
        return (*whole, "two choices are the same")
    return Segment(alternatives, exact=None if any("*" in read for read in exact) else exact)


def _alternative(text: str, choices: tuple[Choice, ...], whole: tuple[int, int]) -> Alternative:
    if len(choices) == 1:
        (only,) = choices
        return Alternative(text, only.start, only.end, only.is_range, choices)
    return Alternative(text, *whole, choices=choices)


def _literal_fault(text: str, start: int) -> Fault | None:
    strange = _NOT_IN_A_NAME.search(text)
    if strange is None:
        return None
    return (
        start + strange.start(),
        start + strange.end(),
        f"`{strange.group()}` can't be part of a module name",
    )


def _choices(body: str, start: int) -> list[Choice] | Fault:
    """Parse the text between braces: `a,b`, or a range alone."""
    if ".." in body:
        return _numbers(body, start)
    choices: list[Choice] = []
    offset = start
    for part in body.split(","):
        text = part.strip(" ")
        at = offset + len(part) - len(part.lstrip(" "))
        offset += len(part) + 1
        if not text:
            return (at, at + 1, "an empty alternative")
        fault = _literal_fault(text, at)
        if fault is not None:
            return fault
        choices.append(Choice(text, at, at + len(text)))
    return choices


def _too_long(num_numbers: int) -> str:
    count = str(num_numbers) if num_numbers < 10**12 else "over 10^12"
    return f"this range has {count} numbers, more than {MAX_ALTERNATIVES}: use `*`"


def _numbers(body: str, start: int) -> list[Choice] | Fault:
    end = start + len(body)
    match = _RANGE.match(body)
    if match is None:
        return (start, end, "a range must be two numbers, alone in its braces: `{0..3}`")
    low, high = int(match.group(1)), int(match.group(2))
    if low > high:
        return (start, end, f"a range must ascend: `{{{high}..{low}}}`")
    if high - low >= MAX_ALTERNATIVES:
        return (start, end, _too_long(high - low + 1))
    return [Choice(str(number), start, end, is_range=True) for number in range(low, high + 1)]


def parse_own(text: str, span: Span) -> Pattern:
    """A pattern that the model, not the plan, wrote."""
    pattern = parse_pattern(ast.Text(text, span))
    assert isinstance(pattern, Pattern), f"transformers' own pattern {text} does not parse"
    return pattern
