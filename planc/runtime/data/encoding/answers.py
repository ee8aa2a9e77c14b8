"""Locates a conversation's messages in its text, for templates that mark no answers themselves.

An answer is what a model has to write: what follows the messages before it, rendered with a generation
prompt, up to the end of its turn, without the space between turns. Templates write a message in other words
once others follow it: reasoning goes, and an end of the conversation. So the text of the first messages is
found again in the text of all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any

from planc.runtime.data.chat import CHANGED
from planc.runtime.data.chat_rows import ANSWERING_ROLES, Message
from planc.runtime.data.encoding.template import Render, Span, TemplateFault, unmarked

_WORD = re.compile(r"\A|(?<!\S)(?=\S)|(?<=>)|\Z")
"""At both ends, before each word, and after each tag: templates cut texts there."""
_HELP = (
    "write `train_on = last_answer` or `train_on = all` in `chat(...)`, or mark the answers in the template "
    "by {% generation %}"
)


@dataclass(frozen=True, slots=True)
class _Text:
    """A rendering: its text without marks, and where its pieces end."""

    text: str
    ends: Sequence[int]

    @classmethod
    def of(cls, pieces: Sequence[str]) -> _Text:
        plain = [unmarked(piece)[0] for piece in pieces]
        return cls("".join(plain), [*accumulate(map(len, plain))])


@dataclass(slots=True)
class Places:
    """The places of messages in the text of their conversation. Raises TemplateFault where one is unknown."""

    messages: Sequence[Message]
    render: Render
    ends_of_turn: Collection[str] = ()
    """The template's texts after answers, as far as known: an answer that ends with one needs no search."""
    _whole: _Text = field(init=False)

    def __post_init__(self) -> None:
        self._whole = self._rendered(len(self.messages), starts_answer=False)

    @property
    def text(self) -> str:
        return self._whole.text

    @property
    def answers(self) -> list[int]:
        """The messages that the model writes."""
        return [index for index, one in enumerate(self.messages) if one["role"] in ANSWERING_ROLES]

    def answers_of(self, wanted: Sequence[int]) -> Iterator[Span]:
        """The span of each answer, in order: after its generation prompt, and with its end of turn."""
        low = 0
        for index in wanted:
            start = self.start(index, low=low)
            low = self._stop(index, start=start)
            yield start, self._end_of_turn(index, start=start, stop=low)

    def whole(self, wanted: Sequence[int]) -> Iterator[Span]:
        """The span of each message, in order, with all that the template writes around it."""
        low = 0
        for index in wanted:
            start = self.start(index, low=low, is_whole=True)
            is_last = index == len(self.messages) - 1
            low = len(self.text) if is_last else self._stop(index, start=start)
            yield start, low

    def start(self, index: int, *, low: int = 0, is_whole: bool = False) -> int:
        """Return where message `index` begins; an answer begins after its generation prompt, if not whole.

        It is not before `low`.
        """
        is_answer = self.messages[index]["role"] in ANSWERING_ROLES and not is_whole
        if index == 0:
            return self._after_prompt(index, low=low) if is_answer else 0
        try:
            before = self._rendered(index, starts_answer=True)
        except TemplateFault:
            # Some templates want a question, and others an answer, before anything else.
            return self._after_prompt(index, low=low) if is_answer else low
        if is_answer and self.text.startswith(before.text):
            return len(before.text)
        without = self._rendered(index, starts_answer=False)
        common = self._end_of_messages(without, before)
        # Of a prompt that begins the reasoning, the text has no more than its first characters without any.
        prompt = before.text[common:] if is_answer and without.text != before.text else ""
        place = common
        if not self.text.startswith(before.text[:common]):
            place = self._again(before, common, index=index, low=low)
        return min(place + _common(self.text[place:], prompt), self._first_change(index, low=place))

    def _end_of_messages(self, without: _Text, before: _Text) -> int:
        """Return where the last message ends in both texts, of which `before` has a generation prompt."""
        if without.text != before.text:
            return _common_end(without, before)
        if self.text.startswith(without.text):
            return len(without.text)
        common = _common_end(without, self._whole)
        # What a template writes at the end of every conversation belongs to no message in it.
        return common if self.text.endswith(without.text[common:]) else len(without.text)

    def _stop(self, index: int, *, start: int) -> int:
        """Return where message `index` ends, before the template's text at the end of all conversations."""
        number = index + 1
        is_last = number == len(self.messages)
        after = self._whole if is_last else self._rendered(number, starts_answer=False)
        if not is_last and self.text.startswith(after.text):
            return len(after.text)
        try:
            prompted = self._rendered(number, starts_answer=True)
        except TemplateFault:
            prompted = after
        stop = self._end_of_messages(after, prompted)
        if self.text.startswith(after.text[:stop]) and stop >= start:
            return stop
        # What the template leaves out of an answer once others follow is its beginning.
        high = self._first_change(number, low=start)
        places = [
            end
            for end in self._whole.ends
            # Space at its start may go with the reasoning, or without it.
            if start < end <= high
            and (words := self.text[start:end].lstrip())
            and after.text.endswith(words, 0, stop)
        ]
        if not places:
            raise self._unknown(index)
        return places[-1]

    def _end_of_turn(self, index: int, *, start: int, stop: int) -> int:
        """Return where an answer ends whose message stops at `stop`: after its end of turn, if it has one."""
        seen = self.text[start:stop]
        for end in self.ends_of_turn:
            if seen.endswith(end):
                return start + len(seen.rstrip())
        try:
            words = self._rendered_with(changed(self.messages, at=(index,)), starts_answer=False)
        except TemplateFault:
            return stop
        last = len(self.text) - _common_suffix(self.text, words.text)
        if not start <= last <= stop:
            return stop
        if index == len(self.messages) - 1 and not self.text[last:stop].strip():
            # Some templates end no turn but the last one.
            stop = len(self.text)
        end = self.text[last:stop]
        return last + len(end.rstrip())

    def _again(self, before: _Text, common: int, *, index: int, low: int) -> int:
        """Find the end of `before.text[:common]` in the text, which does not begin with it."""
        high = self._first_change(index, low=low)
        # It is after the words of the message before, if the text has any of them.
        previous = self._first_change(index - 1, low=low)
        low = previous if previous < high else low
        seen = before.text[:common]
        found = [
            (_common_suffix(seen, self.text[:end]), -end) for end in self._whole.ends if low <= end <= high
        ]
        length, place = max(found, default=(0, 0))
        other = self._rendered_with(changed(self.messages[:index], at=(index - 1,)), starts_answer=True)
        # It must reach back into the words of the message before.
        if not length or length < _common_suffix(before.text, other.text) - (len(before.text) - common):
            raise self._unknown(index)
        return -place

    def _after_prompt(self, index: int, *, low: int) -> int:
        """Return where message `index` begins if those before it can't be rendered alone, or are none."""
        first = self._first_change(index, low=low)
        for number in range(index + 1, len(self.messages) + 1):
            try:
                without = self._rendered(number, starts_answer=False)
                before = self._rendered(number, starts_answer=True)
            except TemplateFault:
                continue
            common = self._end_of_messages(without, before)
            prompt = before.text[common:] if without.text != before.text else ""
            place = self.text.rfind(prompt, low, first) if prompt else -1
            return first if place < 0 else place + len(prompt)
        return first

    def _first_change(self, index: int, *, low: int) -> int:
        """Return where the text first changes with the words of message `index` and those after it."""
        try:
            changed = self._rendered_with(_changed(self.messages, since=index), starts_answer=False)
        except TemplateFault:
            return len(self.text)
        place = _common(self.text, changed.text)
        # A template that writes later messages earlier shows nothing.
        return place if place >= low else len(self.text)

    def _rendered(self, number: int, *, starts_answer: bool) -> _Text:
        return self._rendered_with(self.messages[:number], starts_answer=starts_answer)

    def _rendered_with(self, messages: Sequence[Message], *, starts_answer: bool) -> _Text:
        return _Text.of(self.render(messages, starts_answer))

    def _unknown(self, index: int) -> TemplateFault:
        return TemplateFault(
            f"it renders message {index + 1} differently when more messages follow, so its place is unknown",
            help=_HELP,
        )


def changed(messages: Sequence[Message], *, at: Sequence[int]) -> list[Message]:
    """The messages, with other words in some of them."""
    return [_other_words(one) if index in at else one for index, one in enumerate(messages)]


def _changed(messages: Sequence[Message], *, since: int) -> list[Message]:
    return changed(messages, at=range(since, len(messages)))


def _other_words(value: Any, *, key: str = "") -> Any:
    """A message with a mark before each word, in all texts that a template may write."""
    if isinstance(value, str):
        return value if key in ("role", "type", "id", "tool_call_id") else _WORD.sub(CHANGED, value)
    if isinstance(value, dict):
        return {name: _other_words(part, key=name) for name, part in value.items()}
    if isinstance(value, list):
        return [_other_words(part, key=key) for part in value]
    return value


def _common(one: str, other: str) -> int:
    """The length of the longest common start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _common_suffix(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[-middle:] == other[-middle:] else (low, middle - 1)
    return low


def _common_end(one: _Text, other: _Text) -> int:
    """Return the end of the last piece that both texts have in common from their start on."""
    length = _common(one.text, other.text)
    ends = set(other.ends)
    return max((end for end in takewhile(lambda end: end <= length, one.ends) if end in ends), default=0)
