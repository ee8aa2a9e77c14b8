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
from planc.cli.support.parser import subcommands, summaries

DESCRIPTION = """\
Print a script that completes planc's commands, options, option values and file names in a shell. Print it
again after an upgrade: it is generated from the commands of the installed version."""

EPILOG = """\
examples:
  planc completions bash > ~/.local/share/bash-completion/completions/planc
  planc completions zsh > ~/.zfunc/_planc      (with ~/.zfunc in fpath)
  planc completions fish > ~/.config/fish/completions/planc.fish"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as a shell completes it; `values` are its choices, if it has any."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Words that may follow a command: options, and the choices of its positional arguments, if it has any.

    `name` is `checkpoint ls` for a subcommand. The values of a command with subcommands are their names.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    values: tuple[str, ...]


def words_of(name: str, summary: str, parser: ArgumentParser) -> Words:
    """Read a command's options and values from its parser."""
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


def all_words() -> Iterator[Words]:
    """Every command, each with its subcommands after it, and `help` as the last."""
    names = []
    for command, parser in command_parsers():
        names.append(command.name)
        yield words_of(command.name, command.summary, parser)
        for name, one in subcommands(parser).items():
            yield words_of(f"{command.name} {name}", summaries(parser)[name], one)
    yield Words("help", "show the help of a command", (), tuple(names))


def _top(commands: Sequence[Words]) -> Iterator[Words]:
    return (command for command in commands if " " not in command.name)


def _groups(commands: Sequence[Words]) -> dict[str, list[Words]]:
    """The subcommands of each command that has any."""
    groups: dict[str, list[Words]] = {}
    for command in commands:
        group, space, _ = command.name.partition(" ")
        if space:
            groups.setdefault(group, []).append(command)
    return groups


def bash(commands: Sequence[Words]) -> str:
    """A script for bash."""
    return "\n".join(_bash(commands)) + "\n"


def _bash(commands: Sequence[Words]) -> Iterator[str]:
    yield "_planc() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}"
    yield "  local command=${COMP_WORDS[1]} words"
    for group in _groups(commands):
        yield f'  [[ $command == {group} ]] && ((COMP_CWORD > 2)) && command+=" ${{COMP_WORDS[2]}}"'
    yield "  if ((COMP_CWORD == 1)); then"
    yield f"    words={shlex.quote(' '.join(command.name for command in _top(commands)))}"
    yield "  else"
    yield '    case "$command $previous" in'
    for command in commands:
        for option in command.options:
            if option.takes_value:
                heads = "|".join(shlex.quote(f"{command.name} {flag}") for flag in option.flags)
                yield f"      {heads}) words={shlex.quote(' '.join(option.values))} ;;"
    # A subcommand's pattern comes before that of its group, which matches it too.
    for command in sorted(commands, key=lambda one: " " not in one.name):
        flags = (flag for option in command.options for flag in option.flags)
        yield f"      {shlex.quote(command.name + ' ')}*)"
        yield f"        words={shlex.quote(' '.join(command.values))}"
        yield f"        [[ $word == -* ]] && words={shlex.quote(' '.join(flags))} ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    # Without a matching word, complete file names.
    yield "complete -o default -F _planc planc"


def zsh(commands: Sequence[Words]) -> str:
    """A script for zsh, for a file `_planc` on fpath."""
    return "\n".join(_zsh(commands)) + "\n"


def _zsh(commands: Sequence[Words]) -> Iterator[str]:
    yield "#compdef planc"
    yield "local command"
    yield "local -a commands"
    yield from _zsh_level("", list(_top(commands)))
    for group, own in _groups(commands).items():
        yield f"if [[ $command == {group} ]]; then"
        yield from _zsh_level(f"{group} ", own)
        yield "fi"
    yield "case $command in"
    for command in commands:
        yield f"  {shlex.quote(command.name)})"
        yield "    _arguments \\"
        for option in command.options:
            for flag in option.flags:
                value = f":value:{_zsh_values(option.values)}" if option.takes_value else ""
                yield f"      {shlex.quote(f'*{flag}[{_zsh_text(option.help)}]{value}')} \\"
        yield f"      {shlex.quote(f'*:argument:{_zsh_values(command.values)}')} ;;"
    yield "esac"


def _zsh_level(group: str, commands: Sequence[Words]) -> Iterator[str]:
    """Complete the next command's name, or read it from the words."""
    yield "commands=("
    for command in commands:
        name = command.name.removeprefix(group)
        yield f"  {shlex.quote(f'{name}:{_zsh_text(command.summary)}')}"
    yield ")"
    yield "if ((CURRENT == 2)); then"
    yield "  _describe command commands"
    yield "  return"
    yield "fi"
    yield f'command="{group}$words[2]"'
    yield "shift words"
    yield "((CURRENT--))"


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
    # Whether the words before the cursor match a pattern.
    yield "function __planc_at"
    yield "    set -l words (commandline -opc)"
    yield "    set -e words[1]"
    yield '    string match -q -- "$argv" "$words "'
    yield "end"
    groups = _groups(commands)
    for command in commands:
        group, _, name = command.name.rpartition(" ")
        names = f"-a {name} -d {_fish_quote(command.summary)}"
        yield f"""complete -c planc -n '__planc_at "{group} "' -f {names}"""
        rest = "" if command.name in groups else "*"
        here = f"""complete -c planc -n '__planc_at "{command.name} {rest}"'"""
        if command.values and command.name not in groups:
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
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: Namespace) -> int:
    """Always 0."""
    sys.stdout.write(SHELLS[arguments.shell](tuple(all_words())))
    return CLEAN
