"""Helps for a word of another tool: in findings, and for `planc explain`."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from planc.diagnostics import Applicability, Fix
from planc.plan import surroundings
from planc.plan.blocks import BLOCKS, settings
from planc.plan.foreign import Foreign
from planc.plan.foreign_words import ARGUMENT_NAME, foreign_word
from planc.plan.keys import type_of
from planc.plan.scalars import MAX_INTEGER, Int
from planc.plan.scope import ParamValue, Scope
from planc.plan.spellings import dtype_word
from planc.record import record
from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import parse_assignment
from planc.vocab import MeshDim

_VALUE = re.compile(r"<([^<>]*)>")
_KEY = re.compile(r"(\w+) = ")


LABELS = frozenset(label for shape in BLOCKS.values() for labels in shape.nested.values() for label in labels)
"""Labels of nested blocks, such as `wandb`."""


@record
class Meant:
    """The meaning of a word of another tool: a help, a fix if the meaning is exact, and the key to write."""

    help: str
    fix: Fix | None = None
    key: str | None = None


def meant_by(statement: ast.Setting, *, kind: str, taken: Collection[str], scope: Scope) -> Meant | None:
    """Return the meaning of a `kind` block's setting with another tool's key; `taken` are the block's keys.

    `kind` is empty at the top level.
    """
    word = statement.name.text
    foreign = foreign_word(word)
    if foreign is None:
        return None
    key = _key(foreign) if foreign.block == kind else None
    if foreign.factors:
        return Meant(_product_sentence(foreign, statement, kind=kind, scope=scope), key=key)
    lines = tuple(_lines_with(foreign, word, statement.value))
    line = next((one for one in lines if _fits(foreign.block, one, scope.params)), None)
    if there := _already_there(foreign, line, statement, scope):
        return Meant(f"remove it: `{there}` already does this", key=key)
    if _asks_for_nothing(foreign, statement.value):
        return Meant(_removed(foreign, statement, scope), key=key)
    help = _sentence(foreign, word, line, kind=kind, value=statement.value)
    if (own := _own_learning_rate(scope)) is not None and foreign.block == "optimizer":
        help = help.replace("lr = 3e-4", f"lr = {own}")
    if word.lower() in ("recompute_granularity", "ac_mode") and _text(statement.value) in ("full", '"full"'):
        help = help.partition("; ")[0].replace("-> selective", "-> full")
    if line is None or line != lines[0] or not foreign.same or key is None or key in taken:
        return Meant(help, key=key)
    return Meant(help, Fix(statement.name.span, key, Applicability.SAFE), key)


def _product_sentence(foreign: Foreign, statement: ast.Setting, *, kind: str, scope: Scope) -> str:
    """The product that the line takes, where the plan shows all factors."""
    word = statement.name.text
    numbers = [
        surroundings.positive_integer(statement.value, scope),
        *(surroundings.factor(path, scope) for path in foreign.factors),
    ]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or math.prod(known) > MAX_INTEGER:
        return _sentence(foreign, word, None, kind=kind)
    why, place = foreign.why.replace("{word}", word), _place(foreign, kind)
    line = f"{_key(foreign)} = {Int().render(math.prod(known))}"
    return f"{why}: write `{line}`{place}, {' x '.join(map(str, known))} ({foreign.also})"


def _already_there(foreign: Foreign, line: str | None, statement: ast.Setting, scope: Scope) -> str | None:
    """Return the plan's line that does what a word with its value asks for; None without one."""
    value = statement.value
    if foreign.rule and not _asks_for_nothing(foreign, value):
        return surroundings.rules_block("tensor_parallel", foreign.rule, scope)
    if foreign.block == "" and " -> " in foreign.line:
        return None if _is_off(value) else surroundings.block_header(foreign.line.split()[0], scope)
    key = _key(foreign)
    if key is None or foreign.why or foreign.also:
        return None
    meant = line or (_example(foreign, statement.name.text) if _asks_for(foreign, value) else "")
    there = surroundings.setting_value(foreign.block, key, scope)
    text = _text(there) if there is not None else None
    return meant if meant and text is not None and meant == f"{key} = {text}" else None


def _asks_for_nothing(foreign: Foreign, value: ast.Value) -> bool:
    """Whether a value of a word turns off what is off by default."""
    if (_text(value) or "").strip('"') in foreign.off:
        return True
    is_fixed = bool(foreign.line) and not foreign.both and _VALUE.search(foreign.line) is None
    return is_fixed and isinstance(value, ast.Bool) and not value.value


def _removed(foreign: Foreign, statement: ast.Setting, scope: Scope) -> str:
    """The help for a word that asks for nothing, also where the plan itself asks for it."""
    if not foreign.line and not foreign.rule:
        return f"remove it: {foreign.why}"
    key = _key(foreign)
    there = surroundings.setting_value(foreign.block, key, scope) if key is not None else None
    line = _example(foreign, statement.name.text)
    if there is not None and f"{key} = {_text(there)}" == line:
        return f"remove it, and `{line}` in `{foreign.block}`, which turns this on"
    return "remove it: this is off by default"


def _own_learning_rate(scope: Scope) -> str | None:
    """The learning rate that the plan writes in the optimizer's call, or as a key of the block."""
    kind = surroundings.setting_value("optimizer", "kind", scope)
    arguments = kind.arguments if isinstance(kind, ast.Call) else ()
    written = [
        argument.value for argument in arguments if argument.name is not None and argument.name.text == "lr"
    ]
    for word in ("lr", "learning_rate"):
        written += filter(None, [surroundings.setting_value("optimizer", word, scope)])
    return _text(written[0]) if written else None


def _is_off(value: ast.Value) -> bool:
    """Whether a value is `false` or zero."""
    return isinstance(value, ast.Bool | ast.Number) and not value.value


def _asks_for(foreign: Foreign, value: ast.Value) -> bool:
    """Whether a value turns a word on: `true`, or another spelling of what the line sets."""
    sets = foreign.line.partition(" = ")[2]
    match value:
        case ast.Bool(is_true):
            return is_true
        case ast.Ref(name):
            word = name.text
        case ast.Text(word):
            pass
        case _:
            return False
    return word == sets or dtype_word(word, known=(sets,)) == sets


def foreign_help(word: str, *, kind: str = "") -> str | None:
    """Return what to write for another tool's word in a `kind` block or at the top level; None if unknown."""
    foreign = foreign_word(word)
    return _sentence(foreign, word, None, kind=kind) if foreign else None


def foreign_page(word: str) -> str | None:
    """Return the page of `planc explain` for another tool's word; None for a label that plans have too."""
    foreign = foreign_word(word)
    if foreign is None or word in LABELS:
        return None
    lines = [f"{word}: a word of other tools", "", _sentence(foreign, word, None, kind="")]
    if block := meant_block(word):
        lines.append(f"`planc explain {block}` lists what the block takes")
    return "\n".join(lines) + "\n"


def meant_block(word: str) -> str | None:
    """The kind of block that another tool's word belongs to, or names."""
    foreign = foreign_word(word)
    if foreign is None or not foreign.line:
        return None
    kind = foreign.block or foreign.line.split()[0]
    assert kind in BLOCKS, f"the line for `{word}` is in no block"
    return kind


def meant_setting(word: str) -> str | None:
    """The dotted path of the setting, or of the argument, whose value another tool's word takes."""
    foreign = foreign_word(word)
    if foreign is None or not (argument := ARGUMENT_NAME.search(foreign.line)):
        return None
    path = f"{foreign.block}.{_key(foreign)}"
    return path if argument.start() == 0 else f"{path}.{argument[1]}"


def meant_mesh_dim(word: str) -> MeshDim | None:
    """The mesh dim that another tool's word names."""
    foreign = foreign_word(word)
    key = _key(foreign) if foreign is not None and foreign.block == "mesh" else None
    return MeshDim(key) if key in tuple(MeshDim) else None


def _sentence(
    foreign: Foreign, word: str, line: str | None, *, kind: str, value: ast.Value | None = None
) -> str:
    """The help with a line that has the plan's value, else with the example."""
    why, place = foreign.why.replace("{word}", word), _place(foreign, kind)
    if foreign.factors:
        return f"{why}: set `{_key(foreign)}`{place} to {foreign.also}"
    if not foreign.line:
        return why
    if foreign.has and line is None and isinstance(value, ast.Ref | ast.Text):
        why = f"planc has {foreign.has}, not {(_text(value) or '').strip(chr(34))}"
    written = line or _example(foreign, word)
    also = foreign.also.replace("{value}", written.rpartition(" = ")[2])
    return f"{f'{why}: ' if why else ''}write `{written}`{place}{also}"


def _place(foreign: Foreign, kind: str) -> str:
    return f" in `{foreign.block}`" if foreign.block not in ("", kind) else ""


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
    for written in (text, f"{text} {unit}", text.strip('"')):
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
