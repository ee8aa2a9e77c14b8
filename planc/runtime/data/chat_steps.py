"""The budget of a chat template for one conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jinja2 import Undefined
from jinja2.utils import Namespace

STEPS, STEPS_A_CHARACTER = 600_000, 20
"""Loop items: a base, and more for each character of the messages."""
TEXT, TEXT_A_CHARACTER = 4 * 2**20, 32
"""Characters of one text: a base, and more for each character of the messages."""
_TEXTS = 8
"""How many texts of the maximum length may be made in total."""
_STEP_CHARACTERS = 2**16
"""Comparing or copying this many characters takes about as long as a step."""


class BudgetError(ValueError):
    """A template uses more than a conversation can need."""


class Budget:
    """What is left for one conversation. `num_characters` of its messages is called only if needed."""

    __slots__ = ("_num_characters", "longest", "max_text", "steps", "text")

    def __init__(self, num_characters: Callable[[], int]) -> None:
        self.steps, self.text, self.max_text = STEPS, _TEXTS * TEXT, TEXT
        self.longest = 0
        self._num_characters: Callable[[], int] | None = num_characters

    def step(self, count: int = 1) -> None:
        """Charge `count` items of a loop: for each, a template may read the longest text so far."""
        self.steps -= count if self.longest < _STEP_CHARACTERS else count * (self.longest // _STEP_CHARACTERS)
        if self.steps < 0 and not self._has_grown():
            raise BudgetError("it takes more steps than a conversation of this length can need")

    def make(self, length: int) -> None:
        """Charge a text of `length` characters, before it is made."""
        self.text -= length
        if length > self.longest:
            if length > self.max_text and not (self._has_grown() and length <= self.max_text):
                raise BudgetError(f"it makes a text of {length:_} characters, more than {self.max_text:_}")
            self.longest = length
        if self.text < 0 and not self._has_grown():
            raise BudgetError(f"it makes more than {_TEXTS * self.max_text:_} characters of text")

    def _has_grown(self) -> bool:
        """Whether long messages allow for what was used: each of their characters adds to the budget."""
        if self._num_characters is not None:
            num_characters, self._num_characters = self._num_characters(), None
            self.steps += STEPS_A_CHARACTER * num_characters
            self.text += _TEXTS * TEXT_A_CHARACTER * num_characters
            self.max_text += TEXT_A_CHARACTER * num_characters
        return self.steps >= 0 and self.text >= 0

    def weigh(self, value: object) -> int:
        """A lower bound of the characters of a value's text; a repeated part counts each time."""
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
                raise BudgetError(f"it uses a {type(one).__name__} as text")
            if length > self.max_text and not (self._has_grown() and length <= self.max_text):
                raise BudgetError(f"it makes a text of more than {self.max_text:_} characters")
        return length
