"""The chat template of a tokenizer as a function from messages to text.

Templates are Jinja, as in transformers, and run in Jinja's sandbox. They have no clock, no files and no
network: the same messages always give the same text.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from planc.runtime.data.chat import START, STOP, ChatTemplate
from planc.runtime.data.chat_rows import Message
from planc.runtime.data.errors import DataError

Span = tuple[int, int]
"""A part of a text, as (start, stop) in characters."""
Render = Callable[[Sequence[Message], bool], list[str]]
"""Renders messages as the pieces of a text, as the template writes them; True adds a generation prompt."""

_RANDOM_FILTERS, _RANDOM_GLOBALS = ("random",), ("lipsum",)
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark of what is trained on, as transformers finds it."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")
"""The text that Python gives an object without one of its own, such as a generator."""


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


@dataclass(frozen=True, slots=True)
class Compiled:
    """A template that is ready to render."""

    template: ChatTemplate
    loaded: Template
    words: frozenset[str]
    """All names and texts in the template: what it does not mention it can't ask for by name."""

    @property
    def marks_answers(self) -> bool:
        """Whether the template itself marks which parts of its text are answers."""
        return _GENERATION.search(self.template.text) is not None

    def render(self, *, tools: Sequence[object] | None, arguments: Mapping[str, object]) -> Render:
        """The function that renders messages with the tools and the variables of one conversation."""
        # Both are always there in transformers, where templates ask whether they are none.
        variables = {"documents": None, **self.template.special_tokens, **arguments, "tools": tools}

        def rendered(messages: Sequence[Message], starts_answer: bool, /) -> list[str]:
            settings = {**variables, "messages": messages, "add_generation_prompt": starts_answer}
            try:
                return [*self.loaded.generate(**settings)]
            except (TemplateFault, MemoryError):
                raise
            # A template may raise any error, as any program may.
            except Exception as error:
                line = _line(error)
                where = f"line {line} of {self.template.origin}: " if line else ""
                raise TemplateFault(f"{where}{type(error).__name__}: {error}") from error

        return rendered


def compiled(template: ChatTemplate) -> Compiled:
    """The template, ready to render. Raises DataError if it does not compile."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _clock(template.date)
    for name in _RANDOM_FILTERS:
        del environment.filters[name]
    for name in _RANDOM_GLOBALS:
        del environment.globals[name]
    try:
        words = frozenset(_words(environment.parse(template.text)))
        return Compiled(template, environment.from_string(template.text), words)
    # Not only TemplateErrors: text nested deeply enough overflows Jinja's parser, or Python's.
    except Exception as error:
        raise DataError(
            f"{template.origin} is not a chat template: {error}", help="fix it, or use another tokenizer"
        ) from error


def _words(tree: nodes.Template) -> Iterator[str]:
    """Variables, attributes and texts."""
    for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Const)):
        if isinstance(node, nodes.Name):
            yield node.name
        elif isinstance(node, nodes.Getattr):
            yield node.attr
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            yield node.value


def require_no_address(text: str, messages: Sequence[Message]) -> None:
    """TemplateFault if a text has the address of an object in it, which differs from run to run."""
    if _ADDRESS.search(text) and not _ADDRESS.search(json.dumps(messages)):
        raise TemplateFault("it writes the address of an object, which differs from run to run")


def unmarked(text: str) -> tuple[str, list[Span]]:
    """A text without its marks, and the marked spans in the order of their ends, as transformers has them."""
    pieces: list[str] = []
    spans: list[Span] = []
    starts: list[int] = []
    length = 0
    for part in _MARK.split(text):
        if part == START:
            starts.append(length)
        elif part == STOP:
            spans.append((starts.pop(), length))
        else:
            pieces.append(part)
            length += len(part)
    return "".join(pieces), spans


_MARK = re.compile(f"([{START}{STOP}])")


def _line(error: BaseException) -> int | None:
    """The line of the template that raised an error, from Jinja's traceback."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == "<template>"
    ]
    return lines[-1] if lines else None


def _clock(today: str | None) -> Callable[[str], str]:
    """`strftime_now` of transformers, at the start of one day."""

    def strftime_now(format: str) -> str:
        if today is None:
            raise TemplateFault(
                "it asks for the date by strftime_now, and templates have no clock here: tomorrow they would "
                "write another text",
                help='write the date in the source, as in `chat("data/*.jsonl", date = "2026-01-31")`',
            )
        return date.fromisoformat(today).strftime(format)

    return strftime_now


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **settings: Any) -> str:
    """JSON without HTML escapes, as in transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **settings)


def _refuse(message: object) -> NoReturn:
    """Called by a template that rejects the messages."""
    raise TemplateFault(str(message))
