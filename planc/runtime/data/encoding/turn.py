"""A template's text around answers: seen in a plain conversation, and trained on as the plan says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planc.runtime.data.encoding.answers import Places
from planc.runtime.data.encoding.template import Render, Span, TemplateFault, unmarked

_WORD = "answer"
_SPACES = ("", "\n", "\n\n", " ")
"""Spaces that templates write between turns."""
_PLAIN: tuple[tuple[str, ...], ...] = (
    ("user", "assistant") * 2,
    ("user", "assistant"),
    ("system", "user", "assistant"),
)
"""Conversations of which every template takes one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A template's text around answers, and the part of it that is trained on by default.

    `ends` is what it writes after each answer of a conversation, space left out; the last of them after the
    last answer. `header` is what it writes before an answer that is trained on with it.
    """

    ends: Sequence[str]
    header: str
    is_trained: bool
    """Whether the end of the last turn is trained on."""

    @property
    def endings(self) -> frozenset[str]:
        """The ends, each with what templates write between turns."""
        return frozenset(end + space for end in self.ends if end for space in _SPACES)

    @property
    def end(self) -> str:
        """The text that ends a turn; empty if none does."""
        return next((end for end in reversed(self.ends) if end), "")

    def end_in(self, text: str, span: Span) -> Span | None:
        """Return the span of the end of a turn, in an answer or after it; None without one."""
        start, stop = span
        words = text[start:stop].rstrip()
        for end in self.ends:
            if end and words.endswith(end):
                return start + len(words) - len(end), start + len(words)
        place = start + len(words)
        place += len(text[place:]) - len(text[place:].lstrip())
        for end in self.ends:
            if end and text.startswith(end, place):
                return place, place + len(end)
        return None

    def words(self, *, trains_ends: bool | None) -> str:
        """Describe the end of a turn, and whether it is trained on."""
        is_trained = self.is_trained if trains_ends is None else trains_ends
        not_ = "" if is_trained else "not "
        if self.end:
            found = f"turns end with {self.end.strip()!r}, which is {not_}trained on"
        else:
            found = f"the template ends no turn; the end of a conversation is {not_}trained on"
        return f"{found}; answers are trained on with {self.header!r} before them" if self.header else found


def turn_of(render: Render) -> Turn | None:
    """Find a template's text around the answers of a plain conversation; None if it takes none."""
    for roles in _PLAIN:
        try:
            return _turn([{"role": role, "content": _WORD} for role in roles], render)
        except TemplateFault:
            continue
    return None


def _turn(talk: list[dict[str, Any]], render: Render) -> Turn:
    text, marks = unmarked("".join(render(talk, False)))
    places = Places(talk, render)
    spans = [*places.answers_of(places.answers)]
    words = [text.find(_WORD, start) for start, _ in spans]
    if any(place < 0 for place in words):
        raise TemplateFault("it leaves out an answer")
    ends = [text[place + len(_WORD) : stop].strip() for place, (_, stop) in zip(words, spans, strict=True)]
    trained = marks or spans
    place = words[-1]
    begin = next((first for first, last in trained if first <= place < last), place)
    last = text.find(ends[-1], place + len(_WORD))
    is_trained = bool(ends[-1]) and any(
        first <= last and last + len(ends[-1]) <= end for first, end in trained
    )
    header = text[begin:place]
    return Turn(tuple(dict.fromkeys(ends)), header if header.strip() else "", is_trained)


def with_ends(text: str, spans: Sequence[Span], turn: Turn, *, is_trained: bool) -> Iterator[Span]:
    """The spans of answers, each with the end of its turn, or without it."""
    for start, stop in spans:
        end = turn.end_in(text, (start, stop))
        if end is None:
            yield start, stop
        else:
            yield start, max(stop, end[1]) if is_trained else min(stop, end[0])
