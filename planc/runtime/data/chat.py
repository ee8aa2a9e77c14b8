"""Conversations: the tokenizer's chat template renders messages as text, and the answers are trained on.

Templates are Jinja, as in transformers, and run in Jinja's sandbox. They have no clock, no files and no
network: the same messages always give the same text.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import Document, field_of, json_records, num_utf8_bytes
from planc.runtime.ranks.reads import Reads

TrainOn = Literal["assistant", "all"]
Messages = list[dict[str, Any]]
Render = Callable[[Messages, bool], str]
"""Renders messages as text, with marks around what the template marks; True adds a generation prompt."""

START, STOP = "\ufdd0", "\ufdd1"
"""Marks around an answer: noncharacters, which Unicode keeps out of all text."""


@dataclass(frozen=True, slots=True)
class ChatSource:
    """JSON Lines whose `field` is a list of messages, each with a role and a content.

    `train_on` "assistant" trains on the assistant's messages only, "all" on the whole conversation.
    """

    patterns: tuple[str, ...]
    field: str = "messages"
    train_on: TrainOn = "assistant"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template's text and its file. `special_tokens` are the variables it may use, such as `eos_token`."""

    origin: str
    text: str
    special_tokens: Mapping[str, str]


def conversations(
    source: ChatSource, *, base: Path, template: ChatTemplate, reads: Reads | None = None
) -> Iterator[Document]:
    """The conversations of a source as documents. Raises DataError that names the bad line."""
    render = compiled(template)
    for origin, record in json_records(source.patterns, base=base, reads=reads):
        messages = _messages(field_of(record, field=source.field, origin=origin), origin=origin)
        try:
            text, targets = unmarked(render(messages, False))
            if source.train_on == "all":
                targets = ((0, len(text)),)
            elif not targets:
                targets = tuple(_answers(messages, text, render=render))
        except TemplateFault as fault:
            raise DataError(
                f"{origin}: the chat template rejects this conversation: {fault}", help=fault.help
            ) from fault
        yield Document(origin, text, num_utf8_bytes(text, origin=origin), targets)


class TemplateFault(ValueError):
    """An error that a template raises for a conversation."""

    def __init__(self, message: str, *, help: str = "fix the messages, or the template") -> None:
        super().__init__(message)
        self.help = help


def _messages(value: object, *, origin: str) -> Messages:
    is_list = isinstance(value, list) and bool(value)
    if not is_list or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in value):  # type: ignore[attr-defined]
        raise DataError(
            f"{origin} has no list of messages",
            help='write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        )
    assert isinstance(value, list)
    if any(mark in json.dumps(value, ensure_ascii=False) for mark in (START, STOP)):
        raise DataError(f"{origin} contains U+FDD0 or U+FDD1, which no text may contain", help="remove them")
    return value


def _answers(messages: Messages, text: str, *, render: Render) -> Iterator[tuple[int, int]]:
    """The spans of the assistant's answers, with their ends of turn: what each adds to the text before it.

    For templates that mark no answer themselves. TemplateFault if the text of a conversation does not begin
    with the text of its first messages: then the span of an answer is unknown.
    """
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(messages[:index], True), render(messages[: index + 1], False)
        if not (after.startswith(before) and text.startswith(after)):
            raise TemplateFault(
                f"it renders the messages before answer {index} differently when more messages follow",
                help="write `train_on = all`, or use one answer per conversation",
            )
        yield len(before), len(after)


def unmarked(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A text without its marks, and the marked spans as (start, stop)."""
    pieces: list[str] = []
    targets: list[tuple[int, int]] = []
    length = 0
    for number, part in enumerate(text.split(START)):
        inside, _, after = part.partition(STOP) if number else ("", "", part)
        if inside:
            targets.append((length, length + len(inside)))
        pieces += [inside, after]
        length += len(inside) + len(after)
    return "".join(pieces), tuple(targets)


def compiled(template: ChatTemplate) -> Render:
    """The template as a function. Raises DataError if it does not compile."""
    # Lazy: only conversations need it.
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols

    from planc.runtime.data.chat_budget import MAX_TEMPLATE_CHARACTERS, BoundedEnvironment
    from planc.runtime.data.chat_steps import Budget

    class Generation(Extension):
        """`{% generation %}`, by which templates mark answers."""

        tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Callable[[], str]) -> str:
            return f"{START}{caller()}{STOP}"

    if len(template.text) > MAX_TEMPLATE_CHARACTERS:
        raise DataError(
            f"{template.origin} is not a chat template: it has {len(template.text):_} characters, "
            f"more than {MAX_TEMPLATE_CHARACTERS:_}",
            help="use another tokenizer",
        )
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, loopcontrols],
        tojson=_to_json,
        raise_exception=_refuse,
    )
    try:
        loaded = environment.from_string(template.text)
    # Not only TemplateErrors: text nested deeply enough overflows Jinja's parser, or Python's.
    except Exception as error:
        raise DataError(
            f"{template.origin} is not a chat template: {error}", help="fix it, or use another tokenizer"
        ) from error

    def render(messages: Messages, starts_answer: bool, /) -> str:
        environment.budget = Budget(lambda: num_characters(messages))
        try:
            return loaded.render(
                messages=messages, add_generation_prompt=starts_answer, **template.special_tokens
            )
        except TemplateFault:
            raise
        # A template may raise any error, as any program may.
        except Exception as error:
            line = _line(error)
            where = f"line {line} of {template.origin}: " if line else ""
            raise TemplateFault(f"{where}{type(error).__name__}: {error}") from error

    return render


def num_characters(value: object) -> int:
    """The characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + num_characters(one) for key, one in value.items())
    return sum(map(num_characters, value)) if isinstance(value, list) else 1


def _line(error: BaseException) -> int | None:
    """The line of the template that raised an error, from Jinja's traceback."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == "<template>"
    ]
    return lines[-1] if lines else None


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **settings: Any) -> str:
    """JSON without HTML escapes, as in transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **settings)


def _refuse(message: object) -> NoReturn:
    """Called by a template that rejects the messages."""
    raise TemplateFault(str(message))
