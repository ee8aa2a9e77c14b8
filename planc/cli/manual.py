"""`python -m planc.cli.manual`: REFERENCE.md, all that planc reads, says and takes, on standard output."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser
from collections.abc import Iterator

from planc.api import CODES
from planc.cli.main import Command, command_parsers
from planc.diff.codes import CODES as CHANGE_CODES
from planc.doctor.codes import CODES as MACHINE_CODES
from planc.show.manual import manual, table

_HEAD = """\
# Reference

Made by `make reference` from the grammar and from the definitions that planc itself reads; a test compares.
To learn the language, start with the [README](README.md).

[Syntax](#syntax) · [Blocks](#blocks) · [Units](#units) · [Styles](#styles) · [Ops](#ops) ·
[Diagnostics](#diagnostics) · [Commands](#commands)
"""

_COMMANDS = """\
## Commands

Exit codes: 0 clean; 1 findings, or a difference with `diff --exit-code`; 2 could not run. `TP_SIZE`,
`DP_SIZE` and `CP_SIZE` in the environment set `mesh.tp`, `mesh.dp_shard` and `mesh.cp`; `--set` wins. Every
command takes `--help`, and `--debug` for the traceback of an internal error."""


def reference() -> str:
    """The text of REFERENCE.md."""
    lines = [_HEAD, *manual(codes=(*CODES, *CHANGE_CODES, *MACHINE_CODES)), *_commands()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _commands() -> Iterator[str]:
    yield from _COMMANDS.splitlines()
    for command, parser in command_parsers():
        yield ""
        yield from _command(command, parser)


def _command(command: Command, parser: ArgumentParser) -> Iterator[str]:
    # argparse has no public way to its arguments.
    actions = [action for action in parser._actions if action.dest not in ("help", "debug")]
    module = command.module()
    yield f"### planc {command.name}"
    yield ""
    yield str(module.DESCRIPTION).strip()
    yield ""
    yield from table(("argument", "meaning"), [(f"`{_written(one)}`", _meaning(one)) for one in actions])
    if actions:
        yield ""
    yield "```text"
    yield str(module.EPILOG).strip()
    yield "```"


def _written(action: argparse.Action) -> str:
    """`--set NAME=VALUE`, `PLAN...`."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.rpartition("_")[2].upper())
    if not action.option_strings:
        return f"{value}..." if action.nargs in ("+", "*") else f"[{value}]" if action.nargs == "?" else value
    return f"{', '.join(action.option_strings)} {value}".strip()


def _meaning(action: argparse.Action) -> str:
    """The help, then the words that may follow where it does not name them."""
    text = (action.help or "").replace("%%", "%")
    unnamed = [str(word) for word in action.choices or () if str(word) not in text]
    words = ", ".join(f"`{word}`" for word in action.choices or ()) if unnamed else ""
    return "; ".join(part for part in (text, words) if part)


if __name__ == "__main__":
    sys.stdout.write(reference())
