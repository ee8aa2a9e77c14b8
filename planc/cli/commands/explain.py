"""`planc explain`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TextIO

from planc.cli.main import COMMANDS
from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.views import write_view
from planc.diagnostics import pages
from planc.diagnostics.suggest import nearest
from planc.plan.foreign_help import foreign_page
from planc.plan.scalars import listed
from planc.show import reference

DESCRIPTION = """\
Explain a code (P402, or by name: kv-heads-indivisible), a block (tensor_parallel), a key or value of one
(logging.tracker, wandb), an op of the graph (fsdp.shard) or a style (colwise). Without a topic: list all
but keys and values."""

_MAX_NEAR = 6
_PAGE_CELLS = 100
"""Longer lines of prose are hard to read."""

EPILOG = """\
examples:
  planc explain P402
  planc explain optimizer
  planc explain tp.shard"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="CODE | OP | BLOCK | STYLE")


def run(arguments: Namespace) -> int:
    """0 once explained; UsageError for a word that nothing has."""
    if arguments.topic is None:
        sys.stdout.write(_index())
        return CLEAN
    text = _page(arguments.topic)
    if text is None:
        raise UsageError(_unknown(arguments.topic))
    _write_page(text, stream=sys.stdout)
    return CLEAN


def _write_page(text: str, *, stream: TextIO) -> None:
    """Markdown as it is into a pipe, rendered on a terminal; a reference page in lines that fit there."""
    if not text.startswith("# "):
        write_view(text, stream=stream)
        return
    if not plans.wants_colour(stream):
        stream.write(text if text.endswith("\n") else f"{text}\n")
        return
    # Only a terminal needs them, and a pipe should not wait for the import.
    from rich.console import Console
    from rich.markdown import Markdown

    width = plans.terminal_width(stream)
    Console(file=stream, width=min(width or _PAGE_CELLS, _PAGE_CELLS)).print(
        Markdown(text, code_theme="ansi_dark")
    )


def _page(topic: str) -> str | None:
    code = topic.upper()
    if code in pages.pages():
        return pages.page(code)
    text = reference.page(topic)
    if text is None:
        text = pages.page(pages.names().get(topic.lower(), ""))
    return text if text is not None else _command(topic) or foreign_page(topic) or _home(topic)


def _command(topic: str) -> str | None:
    summary = next((command.summary for command in COMMANDS if command.name == topic), None)
    return f"planc {topic}: {summary}\n`planc {topic} --help` says more" if summary else None


def _home(topic: str) -> str | None:
    """The page of the one block that has a key, or a value of this name; `logging.tracker` names both."""
    named, _, key = topic.rpartition(".")
    blocks = [block for block in reference.blocks_with(key) if named in ("", block)]
    if key and not blocks:
        blocks = [block for block in reference.blocks_that_mention(key) if named in ("", block)]
    return reference.page(blocks[0]) if len(blocks) == 1 else None


def _index() -> str:
    lines = [f"{kind}: {' '.join(names)}" for kind, names in reference.topics().items()]
    return "\n".join([*lines, f"codes: {' '.join(pages.pages())}"]) + "\n"


def _unknown(topic: str) -> str:
    """What is called nearly so, or has the word as a key; else where all topics are listed."""
    names = [name for group in reference.topics().values() for name in group]
    near = nearest(topic, [*names, *pages.pages(), *pages.names()], limit=_MAX_NEAR)
    homes = [f"`planc explain {block}` has it" for block in reference.blocks_with(topic)]
    meant = [f"did you mean {listed(f'`{name}`' for name in near)}?"] if near else []
    return f"nothing is called `{topic}`: {'; '.join((*homes, *meant)) or '`planc explain` lists all topics'}"
