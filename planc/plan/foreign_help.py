"""What to write for a word of another tool: in findings, and for `planc explain`."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from planc.diagnostics import Applicability, Fix
from planc.plan.blocks import BLOCKS, settings
from planc.plan.foreign_words import FOREIGN, Foreign
from planc.plan.scope import ParamValue, Scope
from planc.plan.types import type_of
from planc.record import record
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import parse_assignment
from planc.vocab import MeshDim

_VALUE = re.compile(r"<([^<>]*)>")
_KEY = re.compile(r"(\w+) = ")
_ARGUMENT = re.compile(r"(\w+) = <")


LABELS = frozenset(label for shape in BLOCKS.values() for labels in shape.nested.values() for label in labels)
"""Labels of nested blocks, such as `wandb`."""


@record
class Meant:
    """What a word of another tool means: a help, a fix if the meaning is exact, and the key to write."""

    help: str
    fix: Fix | None = None
    key: str | None = None


def meant_by(
    statement: ast.Setting, *, kind: str, taken: Collection[str], params: Mapping[str, ParamValue]
) -> Meant | None:
    """What a setting of a `kind` block means, if its key is another tool's; `taken` are the block's keys."""
    word = statement.name.text
    foreign = FOREIGN.get(word.lower())
    if foreign is None:
        return None
    lines = tuple(_lines_with(foreign, word, statement.value))
    line = next((one for one in lines if _fits(foreign.block, one, params)), None)
    help = _sentence(foreign, word, line or _example(foreign, word), kind=kind)
    key = _key(foreign) if foreign.block == kind else None
    if line is None or line != lines[0] or not foreign.same or key is None or key in taken:
        return Meant(help, key=key)
    return Meant(help, Fix(statement.name.span, key, Applicability.SAFE), key)


def foreign_help(word: str, *, kind: str = "") -> str | None:
    """What to write for another tool's word inside a `kind` block, or at the top level."""
    foreign = FOREIGN.get(word.lower())
    return _sentence(foreign, word, _example(foreign, word), kind=kind) if foreign else None


def foreign_page(word: str) -> str | None:
    """What `planc explain` prints for another tool's word; None for a label that plans have too."""
    foreign = FOREIGN.get(word.lower())
    if foreign is None or word in LABELS:
        return None
    lines = [f"{word}: a word of other tools", "", _sentence(foreign, word, _example(foreign, word), kind="")]
    if block := meant_block(word):
        lines.append(f"`planc explain {block}` lists what the block takes")
    return "\n".join(lines) + "\n"


def meant_block(word: str) -> str | None:
    """The kind of block that another tool's word belongs to, or names."""
    foreign = FOREIGN.get(word.lower())
    if foreign is None or not foreign.line:
        return None
    kind = foreign.block or foreign.line.split()[0]
    assert kind in BLOCKS, f"the line for `{word}` is in no block"
    return kind


def meant_setting(word: str) -> str | None:
    """The dotted path of the setting, or of the argument, whose value another tool's word takes."""
    foreign = FOREIGN.get(word.lower())
    if foreign is None or not (argument := _ARGUMENT.search(foreign.line)):
        return None
    path = f"{foreign.block}.{_key(foreign)}"
    return path if argument.start() == 0 else f"{path}.{argument[1]}"


def meant_mesh_dim(word: str) -> MeshDim | None:
    """The mesh dim that another tool's word names."""
    foreign = FOREIGN.get(word.lower())
    key = _key(foreign) if foreign is not None and foreign.block == "mesh" else None
    return MeshDim(key) if key in tuple(MeshDim) else None


def _sentence(foreign: Foreign, word: str, line: str, *, kind: str) -> str:
    why = foreign.why.replace("{word}", word)
    if not line:
        return why
    place = f" in `{foreign.block}`" if foreign.block not in ("", kind) else ""
    return f"{f'{why}: ' if why else ''}write `{line}`{place}{foreign.also}"


def _key(foreign: Foreign) -> str | None:
    """The key of the line, if it is a setting."""
    match = _KEY.match(foreign.line)
    return match[1] if match else None


def _example(foreign: Foreign, word: str) -> str:
    return _VALUE.sub(r"\1", foreign.line).replace("{word}", word)


def _lines_with(foreign: Foreign, word: str, value: ast.Value) -> Iterator[str]:
    """The line with the value that the plan gives: as it is written, then with the unit that it may lack."""
    shown = _VALUE.search(foreign.line)
    text = _text(value)
    if shown is None or text is None:
        return
    unit = shown[1].partition(" ")[2]
    for written in (text, f"{text} {unit}"):
        line = f"{foreign.line[: shown.start()]}{written}{foreign.line[shown.end() :]}"
        yield line.replace("{word}", word)


def _fits(block: str, line: str, params: Mapping[str, ParamValue]) -> bool:
    """Whether a setting takes its value."""
    name, _, _ = line.partition(" = ")
    assignment, _ = parse_assignment(SourceFile("", line))
    if assignment is None:
        return False
    trial = Scope(params)
    type_of(_fields()[f"{block}.{name}"]).convert(assignment.value, trial)
    return not trial.diagnostics


def _text(value: ast.Value) -> str | None:
    """A value as it is written; None for a call."""
    match value:
        case ast.Number(text=text, unit=unit):
            return f"{text} {unit.text}" if unit else text
        case ast.Bool(is_true):
            return "true" if is_true else "false"
        case ast.Text(text):
            return f'"{text}"'
        case ast.Ref(name):
            return name.text
        case ast.Items(values):
            texts = [_text(one) for one in values]
            return None if None in texts else f"[{', '.join(filter(None, texts))}]"
        case _:
            return None


@functools.cache
def _fields() -> Mapping[str, Any]:
    return dict(settings())
