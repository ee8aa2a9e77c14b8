"""`planc explain`."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from typing import TextIO

from planc.cli.main import COMMANDS
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.purposes import purpose_page
from planc.cli.support.terminal import terminal_width, wants_color, write_view
from planc.diagnostics import pages
from planc.diagnostics.by_symptom import (
    SYMPTOMS,
    phrases,
    symptom_named,
    symptom_page,
    symptoms_in,
    symptoms_near,
)
from planc.diagnostics.suggest import nearest
from planc.first_plan.purpose import Purpose
from planc.plan.blocks import BLOCKS
from planc.plan.foreign_help import foreign_page
from planc.plan.foreign_words import foreign_words
from planc.plan.scalars import listed
from planc.show import reference
from planc.show.extensions import extension_page

DESCRIPTION = """\
Explain an error code (P402, or by name: kv-heads-indivisible), a block (tensor_parallel), a key or value of
a block (logging.tracker, wandb), an op of the graph (fsdp.shard), a style (colwise), a purpose of planc new
(chats), or a word of the field or of another tool (lora, ZeRO-3, ring attention).

A symptom (out of memory, nan, hang, slow) or an intention (multi node, custom dataset, callback) gets what to
look at, in which order. A topic may have several words, and may be an error message.

Without a topic, list all topics except keys, values and words of other tools."""

_NOT_OF_WORDS = re.compile(r"[\s./-]+")
"""Separators of the words of a term: `ring attention`, `torch.compile`, `ZeRO-2`."""
_MAX_NEAR = 6
_PAGE_CELLS = 100
"""The greatest width of rendered prose."""

EPILOG = """\
examples:
  planc explain P402
  planc explain optimizer
  planc explain out of memory
  planc explain tp.shard
  planc explain qlora"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "topic",
        nargs="*",
        metavar="TOPIC",
        help="a code, a symptom, an op, a block, a key, a style or a word of the field",
    )


def run(arguments: Namespace) -> int:
    """0 once explained; UsageError for an unknown topic."""
    topic = " ".join(arguments.topic)
    if not arguments.topic:
        write_view(_index(), stream=sys.stdout)
        return CLEAN
    text = _page(topic)
    if text is None:
        raise UsageError(_unknown(topic))
    _write_page(text, stream=sys.stdout)
    return CLEAN


def _write_page(text: str, *, stream: TextIO) -> None:
    """Write a page: Markdown is rendered if colors are wanted, reference pages are fitted to a terminal."""
    if not text.startswith("# "):
        write_view(text, stream=stream)
        return
    if not wants_color(stream):
        stream.write(text if text.endswith("\n") else f"{text}\n")
        return
    # Slow to import, and not needed for a pipe.
    from rich.console import Console
    from rich.markdown import Markdown

    width = terminal_width(stream)
    cells = min(width or _PAGE_CELLS, _PAGE_CELLS)
    console = Console(file=stream, width=cells, force_terminal=True, color_system="standard")
    console.print(Markdown(text, code_theme="ansi_dark"))


def _page(topic: str) -> str | None:
    code = topic.upper()
    if code in pages.pages():
        return pages.page(code)
    text = reference.page(topic)
    if text is None:
        text = pages.page(pages.names().get(topic.lower(), ""))
    word = _NOT_OF_WORDS.sub("_", topic.lstrip("-")).lower()
    if text is not None:
        return text
    if word in ("extension", "extensions"):
        return extension_page()
    if (symptom := symptom_named(topic)) is not None:
        return symptom_page(symptom)
    own = _command(topic) or _purpose(topic.lower()) or foreign_page(word)
    return own or _home(topic.lstrip("-")) or _home(word) or _by_words(topic)


def _by_words(topic: str) -> str | None:
    """The page of the one symptom that a topic contains a phrase for."""
    symptoms = symptoms_in(topic)
    return symptom_page(symptoms[0]) if len(symptoms) == 1 else None


def _command(topic: str) -> str | None:
    summary = next((command.summary for command in COMMANDS if command.name == topic), None)
    if summary is None:
        return None
    text = f"planc {topic}: {summary}\n`planc {topic} --help` shows its options"
    # `eval` is a block of plans, too.
    block = _home(topic) or ""
    return f"{block.rstrip()}\n\n{text}" if f"\n  {topic} " in block else text


def _purpose(topic: str) -> str | None:
    """The page of a purpose, after the lines of blocks about it: some are tasks of `model`."""
    page = purpose_page(topic)
    block = _home(topic) if page is not None else None
    return f"{block.rstrip()}\n\n{page}" if block else page


def _home(topic: str) -> str | None:
    """Return the lines of blocks about a key or value, such as `tracker` or `logging.tracker`.

    A word that only a description has is explained by the page of its block, if that is the only one.
    """
    named, _, key = topic.rpartition(".")
    if not key:
        return None
    if found := reference.parts(key, block=named):
        return found
    blocks = [block for block in reference.blocks_that_mention(key) if named in ("", block)]
    return reference.page(blocks[0]) if len(blocks) == 1 else None


def _index() -> str:
    lines = [f"symptoms and intentions: {', '.join(SYMPTOMS)}"]
    lines += [f"{kind}: {' '.join(names)}" for kind, names in reference.topics().items()]
    lines += ["a plan's own code: extension"]
    lines += [f"purposes of planc new: {' '.join(Purpose)}", f"codes: {' '.join(pages.pages())}"]
    return "\n".join(lines) + "\n"


def _unknown(topic: str) -> str:
    """The error for an unknown topic: similar names, or where topics are listed."""
    names = [name for group in reference.topics().values() for name in group]
    names += (*foreign_words(), *Purpose, *(key for shape in BLOCKS.values() for key in shape.names))
    names += (*phrases(), *pages.pages(), *pages.names())
    near = nearest(topic, names, limit=_MAX_NEAR) or symptoms_in(topic) or symptoms_near(topic)
    near = near or tuple(found for word in topic.split() for found in nearest(word, names, limit=1))
    meant = f"did you mean {listed(f'`{name}`' for name in near)}?" if near else ""
    return f"unknown topic `{topic}`: {meant or '`planc explain` lists all topics'}"
