"""Sources of conversations, and of pairs of answers."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Any

from planc.plan import codes
from planc.plan.keys import key, keyed
from planc.plan.scalars import Bool, Choice, Path, Text
from planc.plan.scope import Scope
from planc.plan.types import List, Optional, OrAuto, Rest
from planc.record import record
from planc.syntax import ast

_BOUND = r"(?:(?P<{0}>-?[\d_]+)(?P<{0}_percent>%)?)?"
_PART = re.compile(
    rf"\w+(?:\.\w+)*(?P<slice>\[{_BOUND.format('first')}:{_BOUND.format('last')}\])?(?:\((?P<rounding>[^)]*)\))?"
)
_ROUNDINGS = ("closest", "pct1_dropremainder")


@record
class Split:
    """A split of a dataset or parts of splits, as `datasets` reads it: `train[:10%]+test[5:]`.

    Its grammar is here again: a check must not wait for that library's import, nor need it.
    """

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text = Text().convert(value, scope)
        if text is None or (problem := split_problem(text)) is None:
            return text
        help = "write a name, or a part of it such as `train[:10%]` or `train[100:200]`"
        scope.report(codes.OUT_OF_RANGE, value.span, f"`{text}` is not a split: {problem}", help=help)
        return None

    def describe(self, *, mark: str = "") -> str:
        return Text().describe(mark=mark)

    def render(self, value: str) -> str:
        return Text().render(value)


def split_problem(text: str) -> str | None:
    """Explain why `datasets` would not read a split; None if it would."""
    roundings = []
    for part in re.split(r"\s*\+\s*", text):
        match = _PART.fullmatch(part)
        if match is None:
            return f"`{part}` is neither a name nor a part such as `train[:10%]`"
        bounds = [bound for bound in (match["first"], match["last"]) if bound]
        is_percent = bool(match["first_percent"] or match["last_percent"])
        try:
            numbers = [int(bound) for bound in bounds]
        except ValueError:
            return f"a bound of `{part}` is not a number"
        if is_percent and any(abs(number) > 100 for number in numbers):
            return f"a bound of `{part}` is beyond 100 %"
        if match["rounding"] is not None and match["rounding"] not in _ROUNDINGS:
            return f"the rounding of `{part}` is neither {' nor '.join(_ROUNDINGS)}"
        if match["rounding"] is not None and not is_percent:
            return f"`{part}` has a rounding and no percent"
        roundings.append((match["rounding"] or _ROUNDINGS[0]) if is_percent else None)
    return _mixed(roundings)


def _mixed(roundings: list[str | None]) -> str | None:
    """Each part is compared with the first one alone, as `datasets` does."""
    first = roundings[0]
    if first is not None and any(rounding not in (None, first) for rounding in roundings):
        return "its parts have different roundings"
    return None


@record
class Date:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text = Text().convert(value, scope)
        if text is None:
            return None
        try:
            day = date.fromisoformat(text)
        except ValueError:
            scope.report(
                codes.OUT_OF_RANGE,
                value.span,
                f"`{text}` is not a date",
                help='write it as in `"2026-01-31"`',
            )
            return None
        return day.isoformat()

    def describe(self, *, mark: str = "") -> str:
        return "a date in quotes"

    def render(self, value: str) -> str:
        return f'"{value}"'


DATASETS = (
    "globs of files, datasets' directories, or one dataset of the Hub as `hf://datasets/org/name@commit`"
)
SPLIT = "a split, or a part of one such as `train[:10%]`"
SUBSET = "the configuration, if there are several"
_DATE = "the day that templates take for today's, if they ask for it"
IGNORED = "keys of rows and messages to train without"


@record
class NameOrPath:
    """A path, or a name: a text with neither `.` nor `/`, which is the same in every file."""

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        name = Text().convert(value, scope)
        return name if name is None or {*name}.isdisjoint("./") else Path().convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return "a name or a path in quotes"

    def render(self, value: str) -> str:
        return Path().render(value)


class TrainOn(StrEnum):
    ANSWERS = "answers"
    LAST_ANSWER = "last_answer"
    ALL = "all"


class Thinking(StrEnum):
    LAST = "last"
    ALL = "all"


@keyed
class Chat:
    """Conversations, rendered by a chat template, and prompts with their completions.

    A row has `messages` or `conversations`, or a `prompt` and its `completion`; `tools` and
    `chat_template_kwargs` if it needs them. Any other key is an error.
    """

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    field: str | None = key(
        Optional(Text()), unsaid=None, doc="the key that holds the messages, if it has another name"
    )
    train_on: TrainOn = key(
        Choice(TrainOn, {"assistant": "answers"}),
        unsaid=TrainOn.ANSWERS,
        doc="answers: what the assistant writes, and completions; last_answer: its last message; "
        "all: every token",
    )
    train_on_end_of_turn: Any = key(
        OrAuto(Bool()),
        unsaid="auto",
        doc="whether the token after an answer is trained on, which teaches to stop: auto is as the template "
        "marks it, and true without marks; true also trains on the end of the document after an answer that "
        "the template does not end",
    )
    thinking: Thinking = key(
        Choice(Thinking),
        unsaid=Thinking.LAST,
        doc="last: each conversation once, as the template writes it, which may leave earlier reasoning out; "
        "all: once for each turn, as when it was answered",
    )
    template: str | None = key(
        OrAuto(Optional(NameOrPath())),
        unsaid="auto",
        doc="a template of the tokenizer by its name, or a file; auto is `default`, and `tool_use` for rows "
        "with tools if the tokenizer has one; none is for rows without messages",
    )
    date: str | None = key(Optional(Date()), unsaid=None, doc=_DATE)
    ignore: tuple[str, ...] = key(List(Text()), unsaid=(), doc=IGNORED, example='["id"]')
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@keyed
class ImageChat(Chat):
    """Conversations that have an image each, for `task = image_text_to_text`: rows as of `chat`, and the path
    of an image, or its content as datasets have it.

    Messages have `{"type": "image"}` in the content where it belongs; of a text as prompt it precedes the
    text.
    """

    image: str = key(Text(), unsaid="image", doc="the key that holds a row's image: a path as in plans")


@keyed
class Pairs:
    """Prompts with two answers each, for a preference loss: rows of `prompt`, `chosen` and `rejected`.

    They are texts, or lists of messages. Without a `prompt`, both lists begin with the same messages.
    """

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    template: str | None = key(
        OrAuto(Optional(NameOrPath())), unsaid="auto", doc="as of `chat`; none is for rows of texts"
    )
    date: str | None = key(Optional(Date()), unsaid=None, doc=_DATE)
    ignore: tuple[str, ...] = key(List(Text()), unsaid=(), doc=IGNORED, example='["id"]')
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)
