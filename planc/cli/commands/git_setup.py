"""`planc git-setup`."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.versions.git import git, git_config, top_folder
from planc.diagnostics.wrap import visible

DESCRIPTION = """\
Set up git for plans: `git diff` shows the block that contains a hunk, and `git difftool -t planc` shows what
a change means. It writes .gitattributes at the top of this repository, and the repository's own git
configuration, or yours with --global. It prints what it wrote; running it again changes nothing.

`git diff` still shows plain text: a textconv would hide comments and line numbers, and could not read the
files that a plan of another revision includes."""

EPILOG = """\
examples:
  planc git-setup --print
  planc git-setup
  git difftool --no-prompt -t planc main -- '*.plan'"""

ATTRIBUTES = ".gitattributes"
ATTRIBUTE = "*.plan diff=planc"

# The head of a block, without its brace. Only braces at the start of a line open a block.
_BLOCK_HEAD = r"^([A-Za-z_][^={#]*)\{"

CONFIGURATION: tuple[tuple[str, str], ...] = (
    ("diff.planc.xfuncname", _BLOCK_HEAD),
    # Git sets the variables; MERGED is the plan's path in the repository, where its paths start.
    ("difftool.planc.cmd", 'planc diff --path "$MERGED" "$LOCAL" "$REMOTE"'),
)
"""Names and values of the git settings."""


@dataclass(frozen=True, slots=True)
class Step:
    """A setting to write; `done` if it exists already."""

    text: str
    done: bool


def add_arguments(parser: ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--local", action="store_true", help="configure this repository only (default)")
    scope.add_argument(
        "--global", dest="is_global", action="store_true", help="configure all your repositories"
    )
    parser.add_argument("--print", action="store_true", help="print the settings; write nothing")


def run(arguments: Namespace) -> int:
    """0 once all is written. UsageError outside a repository, or if *.plan has another diff driver."""
    scope = "--global" if arguments.is_global else "--local"
    top = top_folder()
    file = top / ATTRIBUTES
    steps = [_attribute(file, write=not arguments.print)]
    steps.extend(
        _configure(name, value, scope=scope, write=not arguments.print) for name, value in CONFIGURATION
    )
    written = "would write" if arguments.print else "wrote"
    for step in steps:
        print(f"{'has already' if step.done else written:<11}  {visible(step.text)}")
    return CLEAN


def _attribute(file: Path, *, write: bool) -> Step:
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for line in text.splitlines():
        other = re.fullmatch(r"\*\.plan\s(?:.*\s)?(-?diff(?:=\S*)?)(?:\s.*)?", line.strip())
        if other and other[1] != "diff=planc":
            raise UsageError(f"{file} has another diff driver for plans: {line.strip()}")
        if other:
            return Step(f"{ATTRIBUTES}: {line.strip()}", done=True)
    if write:
        ended = text if text.endswith("\n") or not text else f"{text}\n"
        try:
            file.write_text(f"{ended}{ATTRIBUTE}\n", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    return Step(f"{ATTRIBUTES}: {ATTRIBUTE}", done=False)


def _configure(name: str, value: str, *, scope: str, write: bool) -> Step:
    done = git_config(name, scope=scope) == value
    if write and not done:
        git("config", scope, "--replace-all", name, value)
    return Step(f"git config {scope} {name} {shlex.quote(value)}", done)
