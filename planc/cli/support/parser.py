"""The parser of planc's command lines: argparse, with errors that suggest what was probably meant."""

from __future__ import annotations

import shutil
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planc.cli.support.terminal import COLOR_CHOICES

_MAX_COLUMNS = 100
"""The greatest width of help texts."""


class Parser(ArgumentParser):
    """A parser that reports an unknown option or value with its own command's usage and the nearest name."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog, formatter_class=_Formatter, allow_abbrev=False, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Exit with 2 if arguments are left; argparse would report them with the top parser's usage."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(_unknown(left[0], self))
        return parsed, left

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        if isinstance(action, _SubParsersAction):
            near = _did_you_mean(value, names) or f"`{self.prog} --help` lists all commands"
            raise ArgumentError(None, f"unknown command `{value}`; {near}")
        near = _did_you_mean(value, names) or f"write {', '.join(names)}"
        raise ArgumentError(action, f"unknown value `{value}`; {near}")


def shared_options() -> Parser:
    """A parent of every command's parser, and of every subcommand's."""
    parent = Parser(add_help=False, argument_default=SUPPRESS)
    shared = parent.add_argument_group("global options")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    shared.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        metavar="WHEN",
        help="auto (default), always, never; auto also follows NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE",
    )
    return parent


def subcommands(parser: ArgumentParser) -> Mapping[str, ArgumentParser]:
    """The parsers of a parser's subcommands by name, in order; empty for a command without any."""
    # argparse has no public way to its arguments.
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            return dict(action.choices)
    return {}


def group_subcommands(parser: ArgumentParser, groups: Mapping[str, Sequence[str]]) -> None:
    """List a parser's subcommands in its help under the titles of their groups, instead of in one list."""
    # argparse has no groups of subcommands: a group prints whatever actions it holds.
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for group in parser._action_groups:
                if action in group._group_actions:
                    group._group_actions.remove(action)
            for title, names in groups.items():
                listed = parser.add_argument_group(title)
                listed._group_actions += [
                    choice for choice in action._choices_actions if choice.dest in names
                ]


def summaries(parser: ArgumentParser) -> dict[str, str]:
    """The help line of each subcommand."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._choices_actions}
    return {}


def _unknown(argument: str, parser: ArgumentParser) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument `{argument}`"
    name = argument.partition("=")[0]
    near = _did_you_mean(name, _options(parser)) or f"`{parser.prog} --help` lists all options"
    if parser.prog.endswith(" explain"):
        near = f"for another tool's flag, run `{parser.prog} {name.lstrip('-').replace('-', '_')}`"
    return f"unknown option `{name}`; {near}"


def _options(parser: ArgumentParser) -> Iterator[str]:
    """Every option, and every option with a value, as in `--output-format json`."""
    for action in parser._actions:
        yield from action.option_strings
        if action.option_strings:
            yield from (f"{action.option_strings[-1]} {value}" for value in action.choices or ())


def _did_you_mean(name: str, candidates: Sequence[str] | Iterator[str]) -> str | None:
    # Only a wrong command line needs it.
    from planc.diagnostics.suggest import closest

    listed = tuple(candidates)
    word = name.lstrip("-")
    by_value = (one for one in listed if one.endswith(f" {word}"))
    begun = [one for one in listed if len(word) > 1 and one.lstrip("-").startswith(word) and " " not in one]
    near = closest(name, listed) or next(by_value, None) or (begun[0] if len(begun) == 1 else None)
    return f"did you mean `{near}`?" if near else None


class _Formatter(RawDescriptionHelpFormatter):
    """Fits paragraphs and usage to the terminal; indented lines, such as examples, stay as they are."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _MAX_COLUMNS)
        super().__init__(prog, max_help_position=28, width=width - 2)

    def _format_usage(self, *parts: Any) -> str:
        # argparse never breaks a line between options that exclude each other.
        lines = super()._format_usage(*parts).split("\n")
        return "\n".join(broken for line in lines for broken in _broken(line, self._width))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(part, width) for part in text.strip("\n").split("\n\n"))


def _broken(line: str, width: int) -> Iterator[str]:
    """The line, ended at a ` | ` where it is too long."""
    indent = " " * (len(line) - len(line.lstrip()) + 1)
    while len(line) > width and " | " in line[:width]:
        at = line.rindex(" | ", 0, width)
        yield line[: at + 2]
        line = indent + line[at + 3 :]
    yield line


def _filled(paragraph: str, width: int) -> str:
    if any(line.startswith(" ") for line in paragraph.splitlines()):
        return paragraph
    import textwrap  # only help needs it

    return textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)


def add_subcommand(
    commands: Any, name: str, summary: str, description: str, *, examples: Mapping[str, str]
) -> ArgumentParser:
    """A command of a group, with the options that all share, and its examples."""
    parser: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples[name]}",
        parents=[shared_options()],
    )
    return parser
