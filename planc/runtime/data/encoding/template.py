"""The tokenizer's chat template renders messages as text, and marks the answers.

Templates are Jinja, as in transformers, and run in Jinja's sandbox. They have no clock, no files and no
network: the same messages always give the same text.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from planc.runtime.data.chat import START, STOP, ChatTemplate, Messages, TrainOn
from planc.runtime.data.errors import DataError

Spans = tuple[tuple[int, int], ...]
"""Parts of a text, as (start, stop) in characters."""
Render = Callable[[Messages, bool], str]
"""Renders messages as text, with marks around what the template marks; True adds a generation prompt."""

_RANDOM_FILTERS, _RANDOM_GLOBALS = ("random",), ("lipsum",)
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")
"""As Python writes an object without a text of its own, such as a generator."""


class TemplateFault(ValueError):
    """An error that a template raises for a conversation."""

    def __init__(self, message: str, *, help: str = "fix the messages, or the template") -> None:
        super().__init__(message)
        self.help = help


class _Generation(Extension):
    """`{% generation %}`, by which templates mark answers."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{START}{caller()}{STOP}"


def compiled(template: ChatTemplate) -> Render:
    """The template as a function. Raises DataError if it does not compile."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    for name in _RANDOM_FILTERS:
        del environment.filters[name]
    for name in _RANDOM_GLOBALS:
        del environment.globals[name]
    try:
        loaded = environment.from_string(template.text)
    # Not only TemplateErrors: text nested deeply enough overflows Jinja's parser, or Python's.
    except Exception as error:
        raise DataError(
            f"{template.origin} is not a chat template: {error}", help="fix it, or use another tokenizer"
        ) from error

    def render(messages: Messages, starts_answer: bool, /) -> str:
        try:
            return loaded.render(
                messages=messages, add_generation_prompt=starts_answer, **template.special_tokens
            )
        except (TemplateFault, MemoryError):
            raise
        # A template may raise any error, as any program may.
        except Exception as error:
            line = _line(error)
            where = f"line {line} of {template.origin}: " if line else ""
            raise TemplateFault(f"{where}{type(error).__name__}: {error}") from error

    return render


def rendered(messages: Messages, *, render: Render, train_on: TrainOn) -> tuple[str, Spans]:
    """The text of a conversation, and the parts that are trained on. Raises TemplateFault."""
    text, targets = unmarked(render(messages, False))
    if _ADDRESS.search(text) and not _ADDRESS.search(json.dumps(messages)):
        raise TemplateFault("it writes the address of an object, which differs from run to run")
    if train_on == "all":
        return text, ((0, len(text)),)
    return text, targets or tuple(_answers(messages, text, render=render))


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


def unmarked(text: str) -> tuple[str, Spans]:
    """A text without its marks, and the marked spans."""
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
