"""`planc completions`."""

from __future__ import annotations

import argparse
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planc.cli.main import command_parsers
from planc.cli.support.exits import CLEAN

DESCRIPTION = """\
Print a script that completes planc's commands, options and their values in a shell; file names elsewhere.
It is made from the commands' own arguments: print it again after an upgrade."""

EPILOG = """\
examples:
  planc completions bash > ~/.local/share/bash-completion/completions/planc
  planc completions zsh > ~/.zfunc/_planc      (where fpath has ~/.zfunc)
  planc completions fish > ~/.config/fish/completions/planc.fish"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as a shell completes it. `values` are the words that may follow it, if they are few."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """What may follow a command: options, and the words of its positional arguments, if they are few."""

    name: str
    summary: str
    options: tuple[Option, ...]
    values: tuple[str, ...]


def words_of(name: str, summary: str, parser: ArgumentParser) -> Words:
    """What argparse knows of a command."""
    # argparse has no public way to its arguments.
    actions: Sequence[argparse.Action] = parser._actions
    options = tuple(
        Option(
            tuple(action.option_strings),
            (action.help or "").replace("%%", "%"),
            action.nargs != 0,
            _values(action),
        )
        for action in actions
        if action.option_strings
    )
    values = [value for action in actions if not action.option_strings for value in _values(action)]
    return Words(name, summary, options, tuple(values))


def _values(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def bash(commands: Sequence[Words]) -> str:
    """A script for bash."""
    return "\n".join(_bash(commands)) + "\n"


def _bash(commands: Sequence[Words]) -> Iterator[str]:
    yield "_planc() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words"
    yield "  if ((COMP_CWORD == 1)); then"
    yield f"    words={shlex.quote(' '.join(command.name for command in commands))}"
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $previous" in'
    for command in commands:
        for option in command.options:
            if option.takes_value:
                heads = "|".join(shlex.quote(f"{command.name} {flag}") for flag in option.flags)
                yield f"      {heads}) words={shlex.quote(' '.join(option.values))} ;;"
    for command in commands:
        flags = (flag for option in command.options for flag in option.flags)
        yield f"      {shlex.quote(command.name + ' ')}*)"
        yield f"        words={shlex.quote(' '.join(command.values))}"
        yield f"        [[ $word == -* ]] && words={shlex.quote(' '.join(flags))} ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    # Where no word fits, files do.
    yield "complete -o default -F _planc planc"


def zsh(commands: Sequence[Words]) -> str:
    """A script for zsh, for a file `_planc` on fpath."""
    return "\n".join(_zsh(commands)) + "\n"


def _zsh(commands: Sequence[Words]) -> Iterator[str]:
    yield "#compdef planc"
    yield "local -a commands=("
    for command in commands:
        yield f"  {shlex.quote(f'{command.name}:{_zsh_text(command.summary)}')}"
    yield ")"
    yield "if ((CURRENT == 2)); then"
    yield "  _describe command commands"
    yield "  return"
    yield "fi"
    yield "local command=$words[2]"
    yield "shift words"
    yield "((CURRENT--))"
    yield "case $command in"
    for command in commands:
        yield f"  {command.name})"
        yield "    _arguments \\"
        for option in command.options:
            for flag in option.flags:
                value = f":value:{_zsh_values(option.values)}" if option.takes_value else ""
                yield f"      {shlex.quote(f'*{flag}[{_zsh_text(option.help)}]{value}')} \\"
        yield f"      {shlex.quote(f'*:argument:{_zsh_values(command.values)}')} ;;"
    yield "esac"


def _zsh_values(values: Sequence[str]) -> str:
    return f"({' '.join(values)})" if values else "_files"


def _zsh_text(text: str) -> str:
    """Text that ends neither a description nor its brackets."""
    for character in "\\:[]":
        text = text.replace(character, f"\\{character}")
    return text


def fish(commands: Sequence[Words]) -> str:
    """A script for fish."""
    return "\n".join(_fish(commands)) + "\n"


def _fish(commands: Sequence[Words]) -> Iterator[str]:
    for command in commands:
        names = f"-a {command.name} -d {_fish_quote(command.summary)}"
        yield f"complete -c planc -n __fish_use_subcommand -f {names}"
        here = f"complete -c planc -n '__fish_seen_subcommand_from {command.name}'"
        if command.values:
            yield f"{here} -f -a {_fish_quote(' '.join(command.values))}"
        for option in command.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            takes = " -r" if option.takes_value else ""
            values = f" -f -a {_fish_quote(' '.join(option.values))}" if option.values else ""
            yield f"{here} {flags}{takes}{values} -d {_fish_quote(option.help)}"


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Mapping[str, Callable[[Sequence[Words]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS))


def run(arguments: Namespace) -> int:
    """Always 0."""
    words = [words_of(command.name, command.summary, parser) for command, parser in command_parsers()]
    sys.stdout.write(SHELLS[arguments.shell](words))
    return CLEAN
