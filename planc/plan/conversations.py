"""Sources of conversations, and of pairs of answers."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Any

from planc.plan import codes
from planc.plan.keys import key, keyed
from planc.plan.scalars import Bool, Choice, Path, Text
from planc.plan.scope import Scope
from planc.plan.splits import Split
from planc.plan.types import List, Optional, OrAuto, Rest
from planc.record import record
from planc.syntax import ast


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
