"""`planc explain`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from planc.cli.exits import CLEAN, UsageError
from planc.diagnostics import pages
from planc.diagnostics.suggest import did_you_mean
from planc.show import reference

DESCRIPTION = """\
Explain a code (P402), a block (tensor_parallel), an op of the graph (fsdp.shard) or a style (colwise).
Without a topic: list them all."""

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
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    return CLEAN


def _page(topic: str) -> str | None:
    code = topic.upper()
    return pages.page(code) if code in pages.pages() else reference.page(topic)


def _index() -> str:
    lines = [f"{kind}: {' '.join(names)}" for kind, names in reference.topics().items()]
    return "\n".join([*lines, f"codes: {' '.join(pages.pages())}"]) + "\n"


def _unknown(topic: str) -> str:
    names = [name for group in reference.topics().values() for name in group]
    help = did_you_mean(topic, [*names, *pages.pages()]) or "`planc explain` lists all topics"
    return f"nothing is called `{topic}`: {help}"
