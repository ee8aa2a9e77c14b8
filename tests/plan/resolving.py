"""Resolving for tests: a full plan with one edit, its plan or its findings."""

from __future__ import annotations

from collections.abc import Sequence

from planc.api import local_files
from planc.diagnostics import Diagnostic
from planc.plan.link import link
from planc.plan.overrides import Override, parse_override
from planc.plan.resolve import resolve
from planc.plan.spec import Plan
from planc.source import SourceFile
from planc.syntax.parse import parse
from tests.plans import FULL, PLANS

TEXT = FULL


def edited(*edits: tuple[str, str]) -> str:
    """The full plan with edits made, each of which finds its text exactly once."""
    text = TEXT
    for old, new in edits:
        assert text.count(old) == 1, f"{text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text


def setting(text: str, *, kind: str = "set", name: str = "--set") -> Override:
    """An override whose text parses."""
    override, problems = parse_override(SourceFile(name, text), kind=kind)
    assert override is not None, problems
    return override


def resolved(text: str, *, overrides: Sequence[Override] = ()) -> Plan:
    """The plan of a text without fault."""
    plan, problems = _resolve(text, overrides)
    assert plan is not None, [f"{one.code.code} {one.primary.span} {one.primary.text}" for one in problems]
    assert problems == ()
    return plan


def faults(text: str, *, overrides: Sequence[Override] = ()) -> tuple[Diagnostic, ...]:
    """Every finding of a text that parses and means no plan."""
    plan, problems = _resolve(text, overrides)
    assert plan is None
    return problems


def _resolve(text: str, overrides: Sequence[Override]) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """A text as it resolves in the folder of the canonical plans, whose presets it may use."""
    file, _ = parse(SourceFile("x.plan", text))
    assert file is not None
    linked, problems = link(file, load=local_files(PLANS, plan="x.plan"))
    assert linked.file is not None
    plan, more = resolve(linked.file, overrides=(*linked.overrides, *overrides), links=linked.links)
    return plan, (*problems, *more)


def fault(text: str, *, overrides: Sequence[Override] = ()) -> Diagnostic:
    """The only finding."""
    problems = faults(text, overrides=overrides)
    assert len(problems) == 1, [f"{one.code.code} {one.primary.span} {one.primary.text}" for one in problems]
    return problems[0]
