"""What a chat template may use up for one conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jinja2 import Undefined
from jinja2.utils import Namespace

STEPS, STEPS_A_CHARACTER = 600_000, 20
"""Loop items, for any messages and more for each of their characters."""
TEXT, TEXT_A_CHARACTER = 4 * 2**20, 32
"""Characters of one text, in the same way."""
_TEXTS = 8
"""So many of the longest texts may be made in all."""
_STEP_CHARACTERS = 2**16
"""Comparing or copying so many takes about as long as a step."""


class BudgetError(ValueError):
    """A template wants more than a conversation can need."""


class Budget:
    """What is left, for one conversation. `num_characters` of its messages is asked for if they need more."""

    __slots__ = ("_num_characters", "longest", "max_text", "steps", "text")

    def __init__(self, num_characters: Callable[[], int]) -> None:
        self.steps, self.text, self.max_text = STEPS, _TEXTS * TEXT, TEXT
        self.longest = 0
        self._num_characters: Callable[[], int] | None = num_characters

    def step(self, count: int = 1) -> None:
        """`count` items of a loop: for each a template may look at the longest text there is."""
        self.steps -= count if self.longest < _STEP_CHARACTERS else count * (self.longest // _STEP_CHARACTERS)
        if self.steps < 0 and not self._has_grown():
            raise BudgetError("it takes more steps than a conversation of this length can need")

    def make(self, length: int) -> None:
        """A text of `length` characters is about to be made."""
        self.text -= length
        if length > self.longest:
            if length > self.max_text and not (self._has_grown() and length <= self.max_text):
                raise BudgetError(f"it makes a text of {length:_} characters, of {self.max_text:_} allowed")
            self.longest = length
        if self.text < 0 and not self._has_grown():
            raise BudgetError(f"it makes more than {_TEXTS * self.max_text:_} characters of text")

    def _has_grown(self) -> bool:
        """Whether long messages allow for what has been used up: each of their characters adds to it."""
        if self._num_characters is not None:
            num_characters, self._num_characters = self._num_characters(), None
            self.steps += STEPS_A_CHARACTER * num_characters
            self.text += _TEXTS * TEXT_A_CHARACTER * num_characters
            self.max_text += TEXT_A_CHARACTER * num_characters
        return self.steps >= 0 and self.text >= 0

    def weigh(self, value: object) -> int:
        """The characters of a value's text, at least, its parts as often as they stand in it."""
        length, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            self.step()
            if isinstance(one, str):
                length += len(one)
            elif isinstance(one, Mapping):
                waiting += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple | set | frozenset):
                self.step(len(one))
                waiting += one
            elif isinstance(one, Namespace):
                waiting.append(dict(one._Namespace__attrs))
            elif one is None or isinstance(one, int | float | Undefined):
                length += 24
            else:
                raise BudgetError(f"it takes a {type(one).__name__} for text")
            if length > self.max_text and not (self._has_grown() and length <= self.max_text):
                raise BudgetError(f"it makes a text of more than {self.max_text:_} characters")
        return length
