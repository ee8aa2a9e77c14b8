"""`planc lsp`."""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentParser, Namespace

from planc.cli.support.exits import CLEAN, require_libraries

DESCRIPTION = """\
Start the language server for editors: findings as you type with their fixes, hover, completion, go to
definition, rename, formatting, symbols and inlay hints. It talks to the editor over stdin and stdout, checks
plans as `planc check` does without settings, and opens no socket. Needs planc[lsp]."""

EPILOG = """\
example of an editor's configuration (Helix):
  [language-server.planc]
  command = "planc"
  args = ["lsp"]"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--stdio", action="store_true", help="use stdin and stdout, as always; editors add it"
    )


def run(arguments: Namespace) -> int:
    """0 once the editor has ended the session."""
    require_libraries("planc lsp", "pygls", extra="lsp")
    # Needs pygls, which only this command does.
    from planc.lsp.server import serve

    # Other commands end before garbage matters; a server runs for days.
    gc.enable()
    # The server closes its stream, and stdout is flushed at exit.
    with open(os.dup(sys.stdout.fileno()), "wb") as answers:
        serve(questions=sys.stdin.buffer, answers=answers)
    return CLEAN
