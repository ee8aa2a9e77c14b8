"""Glob patterns over dotted names: `*` inside a segment, `**` any depth, `{a,b}`, `{0..3}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planc.syntax import ast

MAX_ALTERNATIVES = 100_000
_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,6})\.\.(\d{1,6})\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_*-]*\Z")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One reading of a segment, with the offsets [start, end) of the brace choice it takes, if any."""

    text: str
    start: int
    end: int
    is_range: bool = False

    def matches(self, name: str) -> bool:
        """Whether a name's segment fits, `*` standing for any characters. Linear in the name's length."""
        head, *middle = self.text.split("*")
        if not middle:
            return self.text == name
        *middle, tail = middle
        if len(name) < len(head) + len(tail) or not name.startswith(head) or not name.endswith(tail):
            return False
        position, end = len(head), len(name) - len(tail)
        for part in middle:
            found = name.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return True


@dataclass(frozen=True, slots=True)
class Segment:
    """One dotted part. `depth` marks `**`, which takes any number of parts, none included."""

    alternatives: tuple[Alternative, ...]
    depth: bool = False
    exact: Mapping[str, Alternative] | None = None
    """Alternatives by text, where none holds a `*`: a range of layers is looked up, not searched."""

    def match(self, name: str) -> Alternative | None:
        """The alternative that fits a name's segment."""
        if self.exact is not None:
            return self.exact.get(name)
        return next((option for option in self.alternatives if option.matches(name)), None)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern; `text` is as written, `source` its node."""

    text: str
    source: ast.Text
    segments: tuple[Segment, ...]

    def match(self, name: str) -> tuple[Alternative, ...] | None:
        """The alternatives by which `name` matches, or None."""
        return _match(self.segments, name.split("."))

    def matches(self, name: str) -> bool:
        return self.match(name) is not None

    @property
    def parts(self) -> tuple[tuple[int, str], ...]:
        """(offset, text) of each segment, as written."""
        return tuple(_split(self.text))

    def matches_prefix(self, name: str, num_segments: int) -> bool:
        """Whether the first segments of the pattern match a whole name."""
        return _match(self.segments[:num_segments], name.split(".")) is not None

    def select(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names that match, in their order."""
        return tuple(name for name in names if self.matches(name))

    def unmatched(self, names: Sequence[str]) -> Iterator[Alternative]:
        """Brace alternatives by which no name matches."""
        used = {option for name in names for option in self.match(name) or ()}
        for segment in self.segments:
            if len(segment.alternatives) > 1:
                yield from (option for option in segment.alternatives if option not in used)


def _match(segments: Sequence[Segment], parts: Sequence[str]) -> tuple[Alternative, ...] | None:
    """Greedy matching with one point of return, as for `*` in file globs: no exponential case."""
    taken: list[Alternative] = []
    at_segment = at_part = 0
    back: tuple[int, int, int] | None = None
    while at_part < len(parts):
        segment = segments[at_segment] if at_segment < len(segments) else None
        if segment is not None and segment.depth:
            back = (at_segment, at_part, len(taken))
            at_segment += 1
            continue
        option = segment.match(parts[at_part]) if segment is not None else None
        if option is not None:
            taken.append(option)
            at_segment, at_part = at_segment + 1, at_part + 1
        elif back is not None:
            back = (back[0], back[1] + 1, back[2])
            at_segment, at_part = back[0] + 1, back[1]
            del taken[back[2] :]
        else:
            return None
    while at_segment < len(segments) and segments[at_segment].depth:
        at_segment += 1
    return tuple(taken) if at_segment == len(segments) else None


def parse_pattern(source: ast.Text) -> Pattern | tuple[int, int, str]:
    """A pattern, or the offsets and the reason of what is wrong with it."""
    segments: list[Segment] = []
    total = 0
    for start, text in _split(source.value):
        if text == "**":
            segments.append(Segment((), depth=True))
            continue
        segment = _segment(text, start)
        if isinstance(segment, tuple):
            return segment
        total += len(segment.alternatives)
        if total > MAX_ALTERNATIVES:
            return (start, start + len(text), f"more than {MAX_ALTERNATIVES} alternatives")
        segments.append(segment)
    return Pattern(source.value, source, tuple(segments))


def _split(text: str) -> Iterator[tuple[int, str]]:
    """(offset, segment) at the dots outside braces."""
    start = depth = 0
    for offset, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "." and depth == 0:
            yield start, text[start:offset]
            start = offset + 1
    yield start, text[start:]


def _segment(text: str, start: int) -> Segment | tuple[int, int, str]:
    options = [Alternative("", start, start + len(text))]
    position = 0
    for brace in _BRACE.finditer(text):
        literal = text[position : brace.start()]
        choices = _choices(brace.group(1), start + brace.start(1))
        if isinstance(choices, tuple):
            return choices
        if len(options) * len(choices) > MAX_ALTERNATIVES:
            return (start, start + len(text), f"more than {MAX_ALTERNATIVES} alternatives")
        options = [
            Alternative(option.text + literal + choice.text, choice.start, choice.end, choice.is_range)
            for option in options
            for choice in choices
        ]
        position = brace.end()
    options = [
        Alternative(option.text + text[position:], option.start, option.end, option.is_range) for option in options
    ]
    for option in options:
        if not _PLAIN.match(option.text) or "**" in option.text or not option.text:
            return (start, start + max(1, len(text)), "not a name, `*`, `**`, `{a,b}` or `{0..3}`")
    has_star = any("*" in option.text for option in options)
    return Segment(tuple(options), exact=None if has_star else {option.text: option for option in options})


def _choices(body: str, start: int) -> list[Alternative] | tuple[int, int, str]:
    if match := _RANGE.match(body):
        low, high = int(match.group(1)), int(match.group(2))
        if low > high or high - low >= MAX_ALTERNATIVES:
            return (start, start + len(body), "a range goes up: {0..3}")
        return [Alternative(str(n), start, start + len(body), is_range=True) for n in range(low, high + 1)]
    choices = []
    for part in re.finditer(r"[^,]+|(?<=,)(?=,)|^(?=,)|(?<=,)$|^$", body):
        text = part.group().strip()
        lead = len(part.group()) - len(part.group().lstrip())
        at = start + part.start() + lead
        if not text:
            return (at, at + 1, "an empty alternative")
        choices.append(Alternative(text, at, at + len(text)))
    return choices
