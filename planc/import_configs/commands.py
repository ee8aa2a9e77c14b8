"""The arguments of a training's command in a shell script, as leaves. Nothing of a script is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from planc.import_configs.leaves import Leaf, SourceError, Value, check_leaf
from planc.record import record

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\\\n)+|(?<![^\s;&|()])\#[^\n]*)"""
    r"""|(?P<word>(?:"(?:[^"\\]|\\.)*"|'[^']*'|\$\(\([^\n]*?\)\)|\$\([^)\n]*\)|`[^`\n]*`|\$\{[^}\n]*\}"""
    r"""|\\[^\n]|[^\s"'\\;&|()<>`])+)"""
    r"""|(?P<sign>\n|[;&|()<>]|["'\\`])"""
)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:\[[@*]\])?(?::?-(?P<otherwise>[^}]*))?\})")
_OPENS = ("if", "for", "while", "until", "case", "function")
_CLOSES = ("fi", "done", "esac", "}")
_PROGRAMS = ("sft", "pt", "rlhf", "train", "pretrain")
"""Subcommands of `swift` and `llamafactory-cli`, which the training's own arguments follow."""
_LAUNCHER = "launch"


@record
class _Word:
    text: str
    line: int


def command_leaves(text: str) -> tuple[Leaf, ...]:
    """The arguments of the one command that has any. SourceError for none, several, or ones that depend."""
    commands = [
        words for words in _Script(text).commands() if any(word.text.startswith("--") for word in words)
    ]
    if len(commands) != 1:
        problem = "no command has arguments" if not commands else "several commands have arguments"
        raise SourceError(
            f"{problem}: pass a file with one command", commands[1][0].line if commands else None
        )
    return tuple(_leaves(commands[0]))


class _Script:
    """A walk over a script's statements, with the variables that they set."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text)]
        self._variables: dict[str, list[_Word]] = {}
        self._conditional: dict[str, int] = {}
        """Variables that a branch or loop sets, with the line."""

    def commands(self) -> Iterator[list[_Word]]:
        depth = 0
        for statement in self._statements():
            first = statement[0].text if statement else ""
            depth += (first in _OPENS) - (first in _CLOSES)
            words = self._without_assignments(statement, is_conditional=depth > 0)
            if words and any("--" in word.text or "[@]" in word.text for word in words):
                if depth > 0 and any(word.text.startswith("--") for word in words):
                    raise SourceError("a branch or loop decides whether this command runs", words[0].line)
                yield [part for word in words for part in self._expanded(word)]

    def _statements(self) -> Iterator[list[_Word]]:
        """Words up to the end of each statement; `NAME=( ... )` is one word for each of its own."""
        words: list[_Word] = []
        array: str | None = None
        for kind, word in self._tokens:
            if array is not None:
                if kind == "word":
                    self._append(array, word)
                elif word.text == ")":
                    array = None
            elif kind == "word":
                words.append(word)
            elif word.text == "(" and words and re.fullmatch(r"\w+\+?=", words[-1].text):
                array = words.pop().text.rstrip("=")
                if not array.endswith("+"):
                    self._variables[array] = []
                array = array.rstrip("+")
            else:
                yield words
                words = []
        yield words

    def _append(self, name: str, word: _Word) -> None:
        self._variables.setdefault(name, []).extend(self._expanded(word))

    def _without_assignments(self, words: Sequence[_Word], *, is_conditional: bool) -> list[_Word]:
        """The command of a statement, after it set its variables."""
        rest = [word for word in words if word.text != "export"]
        while rest and (match := _ASSIGNMENT.fullmatch(rest[0].text)):
            word = rest.pop(0)
            if is_conditional:
                self._conditional.setdefault(match["name"], word.line)
            value = _Word(match["value"], word.line)
            kept = self._variables.get(match["name"], []) if match["more"] else []
            self._variables[match["name"]] = [*kept, *self._expanded(value)]
        return rest

    def _expanded(self, word: _Word) -> Iterator[_Word]:
        """The words that one becomes; a variable that nothing sets stays as it is."""
        whole = _VARIABLE.fullmatch(word.text.strip('"'))
        name = (whole["plain"] or whole["name"]) if whole else ""
        if name in self._variables:
            self._refuse_conditional(name, word)
            parts = self._variables[name]
            for part in parts:
                texts = [part.text] if word.text.startswith('"') else part.text.split()
                yield from (_Word(text, part.line) for text in texts)
            return
        if word.text.startswith("'"):
            yield _Word(word.text.replace("'", ""), word.line)
            return

        def value(match: re.Match[str]) -> str:
            name = match["plain"] or match["name"]
            if name not in self._variables:
                return match["otherwise"] if match["otherwise"] is not None else match[0]
            self._refuse_conditional(name, word)
            return " ".join(part.text for part in self._variables[name])

        yield _Word(re.sub(r"\\(.)", r"\1", _VARIABLE.sub(value, re.sub("[\"']", "", word.text))), word.line)

    def _refuse_conditional(self, name: str, word: _Word) -> None:
        if name in self._conditional:
            problem = (
                f"`{name}` depends on a branch or loop in line {self._conditional[name]}: write its value"
            )
            raise SourceError(problem, word.line)


def _tokens(text: str) -> Iterator[tuple[str, _Word]]:
    line, position, num_words = 1, 0, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, "a sign is any character that no word starts with"
        if match.lastgroup != "blank":
            num_words += 1
            check_leaf((), num_words, line)
            yield match.lastgroup or "", _Word(match[0], line)
        line += match[0].count("\n")
        position = match.end()


def _leaves(words: Sequence[_Word]) -> Iterator[Leaf]:
    """The options of a command: the launcher's below `launch`, until the name of the program."""
    start = next((at for at, word in enumerate(words) if _is_program(word.text)), -1)
    parts: tuple[tuple[Sequence[_Word], tuple[str, ...]], ...]
    parts = (words[: max(0, start)], (_LAUNCHER,)), (words[start + 1 :], ())
    for part, prefix in parts:
        name, line, values = "", 0, list[str]()
        for word in (*part, _Word("--", 0)):
            if not word.text.startswith("--"):
                values.append(word.text)
                continue
            if name:
                yield Leaf((*prefix, name), _value(values), line)
            name, _, own = word.text.removeprefix("--").partition("=")
            line, values = word.line, [own] if "=" in word.text else []


def _is_program(text: str) -> bool:
    return text.endswith(".py") or text in _PROGRAMS


def _value(texts: Sequence[str]) -> Value:
    if not texts:
        return True
    return _scalar(texts[0]) if len(texts) == 1 else tuple(map(_scalar, texts))


def _scalar(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float):
        with suppress(ValueError):
            return read(text) if text.isascii() and "_" not in text else text
    return text
