"""One side of a difference: a graph, and as much of its origin as is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from planc.api import Checked
from planc.capacity.draft import Draft
from planc.diagnostics import Diagnostic, Severity
from planc.diff.difference import Finding, Version
from planc.estimate.estimate import estimate
from planc.estimate.layout import ParameterLayout, layouts
from planc.estimate.result import Estimate
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import BuildModel
from planc.inventory.schema import Inventory
from planc.plan.bind import BoundPlan
from planc.plan.call_arguments import argument_targets
from planc.plan.spec import Plan
from planc.source import SourceFile, Span

AnOp = TypeVar("AnOp", bound=Op)


@dataclass(frozen=True, eq=False)
class Side:
    """A plan or a compiled artifact. Not slotted: its estimate is kept when first asked for.

    `plan` and `draft` are None for an artifact; `inventory` is None if the model is not here. `note` is a
    remark on its origin for the reader.
    """

    name: str
    graph: Graph
    inventory: Inventory | None = None
    plan: Plan | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    note: str = ""
    draft: Draft | None = None

    def op(self, kind: type[AnOp]) -> AnOp | None:
        """The first op of a kind."""
        return next(iter(self.ops(kind)), None)

    def ops(self, kind: type[AnOp]) -> tuple[AnOp, ...]:
        return tuple(op for op in self.graph.ops() if isinstance(op, kind))

    @property
    def model(self) -> BuildModel:
        found = self.op(BuildModel)
        assert found is not None, "every graph builds a model"
        return found

    def layouts(self) -> dict[str, ParameterLayout] | None:
        """Every parameter's layout by fqn, or None if the model is not here."""
        if self.inventory is None:
            return None
        return {parameter.fqn: parameter for parameter in layouts(self.graph, self.inventory)}

    @property
    def bound(self) -> BoundPlan | None:
        return self.draft.bound if self.draft else None

    @cached_property
    def estimate(self) -> Estimate | None:
        """Memory and communication, or None if the model is not here."""
        if self.draft is not None:
            return self.draft.estimate
        return None if self.inventory is None else estimate(self.graph, self.inventory)

    def version(self) -> Version:
        num_errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)
        return Version(self.name, plan_hash(self.graph), self.graph.world_size, num_errors, self.note)

    def place(self, path: str) -> str:
        """Return the place that sets `mesh.tp`: `llama.plan:7 (param tp_size)`; empty if no text does."""
        setting = argument_targets().get(path, path)
        if self.plan is None or not path or setting not in self.plan.spans:
            return ""
        # An argument that the call leaves to its default is shown at the call, which no parameter explains.
        steps = self.plan.origins.get(path, ())
        if steps and steps[0].kind == "set":
            return steps[0].text
        own = steps[0].span if setting != path and steps else None
        span = own or self.plan.spans[setting]
        via = [f"param {step.text}" if step.kind == "parameter" else step.text for step in steps[1:]]
        return f"{span.file}:{span.line}" + (f" ({', '.join(via)})" if via else "")

    def span(self, path: str) -> Span:
        """Return the span that sets `mesh.tp`, or its block's; for an artifact its mesh's, or the start."""
        if self.plan is not None:
            return self.plan.span(path)
        return self.graph.setup[0].span or SourceFile(self.name, "").start()

    def broken(self, subject: str) -> tuple[Finding, ...]:
        """The broken expectations on a fact."""
        expectations = self.plan.expectations if self.plan else ()
        return tuple(
            finding_of(diagnostic, breaks=True)
            for expectation in expectations
            for diagnostic in self.diagnostics
            if expectation.subject == subject and diagnostic.severity is Severity.ERROR
            if _line(diagnostic.primary.span) == _line(expectation.span)
        )

    def found(self, code: str) -> tuple[Finding, ...]:
        """The findings of a code, each place once."""
        found = (
            finding_of(diagnostic, breaks=False)
            for diagnostic in self.diagnostics
            if diagnostic.code.code == code
        )
        return tuple(dict.fromkeys(found))


def finding_of(diagnostic: Diagnostic, *, breaks: bool) -> Finding:
    """The finding as a change shows it."""
    span = diagnostic.primary.span
    return Finding(diagnostic.code.code, str(diagnostic.severity), f"{span.file}:{span.line}", breaks)


def _line(span: Span) -> tuple[str, int]:
    return span.file, span.line


def side_of(checked: Checked, *, name: str) -> Side | None:
    """The side of a checked plan; None if its errors leave it without a graph.

    A plan that breaks rules has a draft graph, which shows what it would do.
    """
    draft = checked.draft
    if draft is None:
        return None
    return Side(name, draft.graph, checked.inventory, checked.plan, checked.diagnostics, draft=draft)
