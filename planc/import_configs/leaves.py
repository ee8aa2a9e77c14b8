"""Configs as leaves: values with their keys and lines, read from JSON, TOML or YAML."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from math import isfinite
from typing import Any, TypeAlias

import yaml

from planc import strict_json
from planc.record import record
from planc.syntax.write import number

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"

MAX_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_LEAVES = 10_000
"""The number of all values, at most; values that aliases repeat count again."""


class SourceError(ValueError):
    """A file that can't be read as a config; `line` is None for all of it."""

    def __init__(self, message: str, line: int | None = None, *, file: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.file = file


@record
class Leaf:
    """A key with its value: a scalar, or a list of scalars. An empty table is an empty list."""

    path: tuple[str, ...]
    """Keys from the top; of a list of tables, the index."""
    value: Value
    line: int
    file: str = ""
    """The file's name."""

    @property
    def key(self) -> str:
        """The key as notes name it."""
        return ".".join(self.path)


def written(value: Value) -> str:
    """A value for a message, as a plan would write it, cut where it is long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case tuple():
            text = f"[{', '.join(map(written, value))}]"
        case float() if isfinite(value):
            text = number(value)
        case _:
            text = str(value)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_leaf(path: tuple[str, ...], num_leaves: int, line: int) -> None:
    """SourceError for a config beyond the limits."""
    if len(path) > MAX_DEPTH:
        raise SourceError(f"keys are nested deeper than {MAX_DEPTH}", line)
    if num_leaves > MAX_LEAVES:
        raise SourceError(f"more than {MAX_LEAVES:_} values", line)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def json_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of a JSON text that is an object. SourceError for anything else."""
    try:
        document = strict_json.loads(text)
    except ValueError as error:
        raise SourceError(f"not JSON: {str(error).partition(' (char')[0]}") from None
    if not isinstance(document, dict):
        raise SourceError("the file is not a table of keys")
    return tuple(leaves_of(document, _json_lines(text)))


def leaves_of(document: dict[str, Any], lines: dict[tuple[str, ...], int]) -> Iterator[Leaf]:
    """The leaves of a parsed table; a key without a line has that of the table it is in."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), document)]
    num_seen = 0
    while stack:
        path, value = stack.pop()
        num_seen += 1
        line = next(lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines)
        check_leaf(path, num_seen, line)
        if isinstance(value, dict) and value:
            stack += [((*path, name), one) for name, one in reversed(value.items())]
        elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
            stack += [((*path, str(index)), one) for index, one in reversed([*enumerate(value)])]
        else:
            yield Leaf(path, _json_plain(value), line)


def _json_plain(value: Any) -> Value:
    if isinstance(value, dict | list):
        return tuple(_json_plain(one) for one in value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _json_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every key and of every list's element, in a text that is JSON."""
    lines: dict[tuple[str, ...], int] = {(): 1}
    stack: list[str | int] = []
    """The scan's path: a list's index, or an object's last key, empty before the first."""
    line, last = 1, 0
    is_key = False
    for token in _TOKEN.finditer(text):
        line += text.count("\n", last, token.start())
        last = token.start()
        match token[0]:
            case "{" | "[" as opening:
                _place(lines, stack, line)
                stack.append("" if opening == "{" else 0)
                is_key = opening == "{"
            case "}" | "]":
                stack.pop()
                is_key = False
            case ",":
                top = stack[-1]
                is_key = isinstance(top, str)
                stack[-1] = "" if isinstance(top, str) else top + 1
            case ":":
                is_key = False
            case key if is_key:
                stack[-1] = strict_json.loads(key)
                _place(lines, stack, line)
            case _:
                _place(lines, stack, line)
    return lines


def _place(lines: dict[tuple[str, ...], int], stack: list[str | int], line: int) -> None:
    lines.setdefault(tuple(map(str, stack)), line)


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_AT = re.compile(r"(.*) \(at line (\d+), column \d+\)")


def toml_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of a TOML text. SourceError for anything else."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise SourceError("keys are nested too deeply") from None
    except ValueError as error:
        at = _AT.fullmatch(str(error))
        raise SourceError(f"not TOML: {at[1] if at else error}", int(at[2]) if at else None) from None
    return tuple(leaves_of(document, _toml_lines(text)))


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """The lines of tables and keys: the first that looks like each."""
    lines: dict[tuple[str, ...], int] = {(): 1}
    table: tuple[str, ...] = ()
    num_tables: Counter[tuple[str, ...]] = Counter()
    for line_number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _toml_path(header[2])
            if header[1] == "[[":
                num_tables[table] += 1
                table = (*table, str(num_tables[table] - 1))
            lines.setdefault(table, line_number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_toml_path(key[1])), line_number)
    return lines


def _toml_path(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"


def yaml_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of one YAML document that is a table. SourceError for anything else."""
    try:
        _check_depth(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise SourceError("the file is not a table of keys")
        return tuple(_Walk().leaves(node, (), 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SourceError(f"not YAML: {error.problem}", mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"not YAML: {str(error).partition(chr(10))[0].partition(';')[0]}") from None


def _check_depth(text: str) -> None:
    """SourceError for nesting that `compose`, which recurses, should not see."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SourceError(f"keys are nested deeper than {MAX_DEPTH}", event.start_mark.line + 1)


class _Walk:
    """One walk over a document; counts what it has seen, however aliases repeat it."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._constructor = yaml.SafeLoader("")

    def leaves(self, node: yaml.Node, path: tuple[str, ...], line: int) -> Iterator[Leaf]:
        self._num_seen += 1
        check_leaf(path, self._num_seen, line)
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise SourceError(f"the tag `{node.tag[:100]}` is not a plain value", line)
        if isinstance(node, yaml.MappingNode) and node.value:
            for key, value, at in self._pairs(node, path):
                yield from self.leaves(value, (*path, key), at)
        elif isinstance(node, yaml.SequenceNode) and not self._is_plain(node):
            for index, value in enumerate(node.value):
                yield from self.leaves(value, (*path, str(index)), value.start_mark.line + 1)
        else:
            yield Leaf(path, self._value(node, line), line)

    def _pairs(self, node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[tuple[str, yaml.Node, int]]:
        """Keys, values and lines; own keys come before those that `<<` merges."""
        own: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise SourceError("a key is not text", line)
            if key.value in own:
                raise SourceError(f"the key `{key.value[:100]}` is also in line {own[key.value]}", line)
            own[key.value] = line
            yield key.value, value, line
        for base in merged:
            self._num_seen += 1
            check_leaf((*path, "<<"), self._num_seen, base.start_mark.line + 1)
            if not isinstance(base, yaml.MappingNode):
                raise SourceError("`<<` merges a value that is not a table", base.start_mark.line + 1)
            for name, value, line in self._pairs(base, (*path, "<<")):
                if name not in own:
                    own[name] = line
                    yield name, value, line

    def _is_plain(self, node: yaml.SequenceNode) -> bool:
        return all(isinstance(one, yaml.ScalarNode) for one in node.value)

    def _value(self, node: yaml.Node, line: int) -> Value:
        if isinstance(node, yaml.ScalarNode):
            try:
                made = self._constructor.construct_object(node)
            except yaml.constructor.ConstructorError:
                raise SourceError(f"the tag `{node.tag[:100]}` is not a plain value", line) from None
            return made if made is None or isinstance(made, str | int | float | bool) else str(node.value)
        return tuple(self._value(one, line) for one in node.value)
