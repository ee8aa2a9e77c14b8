"""A change of any field of any op is told by `diff`, and a resume is judged by what the field states."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from planc.api import check_plan
from planc.diff.differ import diff
from planc.diff.difference import Action, State
from planc.diff.lines import lines
from planc.diff.side import Side
from planc.diff.verdict import verdict
from planc.graph.consequence import UNSTATED, Consequence, meanings
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op, Stage
from planc.graph.ops import OPS, Accumulate, ResumeCheckpoint, SaveCheckpoint
from tests.plans import PLANS

GRAPHS = ("quickstart", "launch-pp2-dp2", "launch-dp4", "qwen3-0.6b-chat", "gemma-2b", "deepseek-v2-lite")
"""Canonical plans that have most ops between them. The others are generated from their types."""


@cache
def _graph(name: str) -> Graph:
    draft = check_plan(PLANS / f"{name}.plan").draft
    assert draft is not None
    graph = draft.graph
    if any(isinstance(op, ResumeCheckpoint) for op in graph.setup):
        return graph
    resume, save = ResumeCheckpoint(policy="latest"), SaveCheckpoint(every_steps=1, at_end=True, keep_last=1)
    return replace(graph, setup=(*graph.setup, resume), save=(save,))


@cache
def graph_with(kind: type[Op]) -> Graph:
    """A graph with an op of this kind; a generated one if no plan has it."""
    for name in GRAPHS:
        if any(isinstance(op, kind) for op in _graph(name).ops()):
            return _graph(name)
    # A plan with the general op has no other in its place.
    general = (name for name in GRAPHS if any(issubclass(kind, type(op)) for op in _graph(name).ops()))
    graph, made = _graph(next(general, "quickstart")), generated(kind)
    part = "setup" if kind.stage < Stage.STEP else "step" if kind.stage is Stage.STEP else "save"
    ops = getattr(graph, part)
    loop = next(op for op in graph.step if isinstance(op, Accumulate))
    if any(issubclass(kind, type(op)) for op in loop.body):
        swapped = replace(loop, body=_with(loop.body, kind, made))
        return replace(graph, step=tuple(swapped if op is loop else op for op in graph.step))
    return replace(graph, **{part: _with(ops, kind, made)})


def _with(ops: tuple[Any, ...], kind: type[Op], made: Any) -> tuple[Any, ...]:
    """Ops and one more."""
    # A more special op takes the place of the general one, with its values.
    for general in (op for op in ops if issubclass(kind, type(op))):
        same = {one.name: getattr(general, one.name) for one in fields(general) if one.name != "op"}
        made = replace(made, **same)
    return (*(op for op in ops if not issubclass(kind, type(op))), made)


UNFILLED = ("op", "span")


def generated(kind: type[Any]) -> Any:
    """A record of this type, every field filled by its type."""
    hints = get_type_hints(kind, include_extras=True)
    given = {one.name: other(hints[one.name], MISSING) for one in fields(kind) if one.name not in UNFILLED}
    return kind(**given)


def other(hint: Any, value: Any) -> Any:
    """A value of a type, another than `value`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return other(parts[0], value)
    if origin is Literal:
        return next((one for one in parts if one != value), f"x{value}")
    if origin in (Union, UnionType):
        kinds = [one for one in parts if one is not NoneType]
        fitting = next((one for one in kinds if is_dataclass(one) and isinstance(value, one)), kinds[0])
        return other(fitting, MISSING if value is None else value)
    if origin is tuple:
        return _other_tuple(parts, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(one for one in hint if one != value)
    if is_dataclass(hint):
        if value is MISSING:
            return generated(hint)  # type: ignore[arg-type]  # a dataclass, not an instance of one
        hints = get_type_hints(type(value), include_extras=True)
        first = next(one.name for one in fields(value) if one.name not in UNFILLED)
        return replace(value, **{first: other(hints[first], getattr(value, first))})
    if hint is bool:
        return True if value is MISSING else not value
    if hint in (int, float):
        return hint(3) if value is MISSING else value + 1
    assert hint is str, f"no values of {hint} are generated"
    return "x" if value is MISSING else f"x{value}"


def _other_tuple(parts: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if parts[1:] == (...,):
        if value is MISSING or not value:
            return (other(parts[0], MISSING),)
        return (*value[:-1], other(parts[0], value[-1]))
    if value is MISSING:
        return tuple(other(part, MISSING) for part in parts)
    return (*value[:-1], other(parts[-1], value[-1]))


def changed(graph: Graph, kind: type[Op], name: str) -> Graph:
    """The graph with another value of a field in its first op of a kind."""
    target = next(op for op in graph.ops() if isinstance(op, kind))
    value = other(get_type_hints(kind, include_extras=True)[name], getattr(target, name))
    assert value != getattr(target, name)

    def swap(op: Any) -> Any:
        if op is target:
            return replace(op, **{name: value})
        if isinstance(op, Accumulate):
            return replace(op, body=tuple(map(swap, op.body)))
        return op

    parts = {part: tuple(map(swap, getattr(graph, part))) for part in ("setup", "step", "save")}
    return replace(graph, **parts)  # type: ignore[arg-type]  # each part is a tuple of ops


MATTERS_WITH = {
    "balance": "sequences that are sharded",
    "over": "attention that is sharded",
    "orders": "a pipeline",
}
"""Fields of a layout that has no effect unless the graph has something else."""

FIELDS = [(kind, name) for kind in OPS for name in meanings(kind)]


def _id(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize("kind", OPS, ids=_id)
def test_every_field_states_what_a_change_means(kind: type[Op]) -> None:
    assert set(meanings(kind)) == {one.name for one in fields(kind)} - UNSTATED


def test_fields_of_one_line_have_one_consequence_and_one_key() -> None:
    stated: dict[str, set[tuple[Consequence, str]]] = {}
    for kind, name in FIELDS:
        if (meaning := meanings(kind)[name]).label:
            stated.setdefault(meaning.label, set()).add((meaning.consequence, meaning.key))
    assert {label: found for label, found in stated.items() if len(found) > 1} == {}
    assert {line.label for line in lines()} >= set(stated)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=_id)
def test_a_change_of_any_field_is_told_and_judged_by_its_consequence(kind: type[Op], name: str) -> None:
    old = graph_with(kind)
    new = changed(old, kind, name)
    assert plan_hash(old) != plan_hash(new)
    told = [one for one in diff(Side("old", old), Side("new", new)).changes if one.action is not Action.KEEP]
    found = verdict(old, new)
    meaning = meanings(kind)[name]
    own = [one.name for one in told if one.name != "graph"]
    match meaning.consequence:
        case Consequence.NUMERICS:
            assert own and found.state is State.REFUSED
            assert meaning.label in found.allow or "does not fit this run" in found.reason
        case Consequence.SAMPLES | Consequence.IDENTITY:
            assert own
            is_tokenizer = meaning.label == "data.tokenizer"
            assert found.state is (State.RESUMES if is_tokenizer else State.REFUSED)
            assert not found.allow and (not is_tokenizer or "if the tokenizer's content" in found.reason)
        case _:
            assert told and found.state is not State.REFUSED and found.notes
            assert own or meaning.consequence is Consequence.DERIVED or name in MATTERS_WITH
