"""Linking for tests: files by path, as a folder would hold them."""

from __future__ import annotations

from collections.abc import Mapping

from planc.diagnostics import Diagnostic
from planc.plan import codes
from planc.plan.include import Load
from planc.plan.link import Linked, link
from planc.plan.overrides import Override
from planc.plan.resolve import resolve
from planc.plan.spec import Plan
from planc.source import SourceFile, Span
from planc.syntax.parse import parse

Files = Mapping[str, str]
"""Texts by path; the first is the plan."""

BASE = """\
param tp_size: int(1..8) = 2
model {
  hf = "models/tiny-llama"
}
mesh {
  dp_shard = 2
  tp = tp_size
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""
"""A whole plan."""


def loader(files: Files) -> Load:
    def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        if path not in files:
            return None, (codes.CANNOT_INCLUDE.at(span, path),)
        return SourceFile(path, files[path]), ()

    return load


def linked(files: Files) -> tuple[Linked, tuple[Diagnostic, ...]]:
    name, text = next(iter(files.items()))
    file, problems = parse(SourceFile(name, text))
    assert file is not None, problems
    return link(file, load=loader(files))


def plan_of(files: Files, *, overrides: tuple[Override, ...] = ()) -> Plan:
    """The plan that files without fault mean."""
    found, problems = linked(files)
    assert found.file is not None and problems == (), said(problems)
    plan, problems = resolve(found.file, overrides=(*found.overrides, *overrides), links=found.links)
    assert plan is not None and problems == (), said(problems)
    return plan


def faults(files: Files, *, overrides: tuple[Override, ...] = ()) -> tuple[Diagnostic, ...]:
    """Every finding of linking and resolving."""
    found, problems = linked(files)
    if found.file is None:
        return problems
    _, more = resolve(found.file, overrides=(*found.overrides, *overrides), links=found.links)
    return (*problems, *more)


def fault(files: Files, *, overrides: tuple[Override, ...] = ()) -> Diagnostic:
    """The only finding."""
    problems = faults(files, overrides=overrides)
    assert len(problems) == 1, said(problems)
    return problems[0]


def said(problems: tuple[Diagnostic, ...]) -> list[str]:
    return [f"{one.code.code} {one.primary.span} {one.primary.text}" for one in problems]
