"""The segments of a pattern: what one dotted part of a name may be."""

from __future__ import annotations

from collections.abc import Mapping

from planc.record import record


@record
class Choice:
    """One choice of a brace, or one number of its range; offsets [start, end) are as written."""

    text: str
    start: int
    end: int
    is_range: bool = False


@record
class Alternative:
    """One reading of a segment. `choices` are what it takes of each of the segment's braces.

    The offsets [start, end) are the choice's, where there is one brace, else the segment's.
    """

    text: str
    start: int
    end: int
    is_range: bool = False
    choices: tuple[Choice, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether a name's segment fits, `*` standing for any characters. Linear in the name's length."""
        if self.text == "*":
            return True
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


@record
class Segment:
    """One dotted part. `depth` marks `**`, which takes any number of parts, none included."""

    alternatives: tuple[Alternative, ...]
    depth: bool = False
    exact: Mapping[str, Alternative] | None = None
    """Alternatives by text, where none holds a `*`: a range of layers is looked up, not searched."""

    def matches(self, part: str) -> bool:
        """Whether some alternative fits a name's part."""
        if self.exact is not None:
            return part in self.exact
        return any(option.matches(part) for option in self.alternatives)

    def fitting(self, part: str) -> tuple[Alternative, ...]:
        """Every alternative that fits a name's part."""
        if self.exact is not None:
            return (self.exact[part],) if part in self.exact else ()
        return tuple(option for option in self.alternatives if option.matches(part))
