"""One side of a difference: a graph, and as much of where it came from as there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from planc.api import Checked
from planc.diagnostics import Diagnostic, Severity
from planc.diff.model import BrokenExpectation, Version
from planc.estimate.layout import ParameterLayout, layouts
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import BuildModel
from planc.inventory.schema import Inventory
from planc.plan.spec import Plan

AnOp = TypeVar("AnOp", bound=Op)


@dataclass(frozen=True, slots=True)
class Side:
    """A plan or a compiled artifact.

    `plan` is None for an artifact; `inventory` is None where the model is not here.
    """

    name: str
    graph: Graph
    inventory: Inventory | None = None
    plan: Plan | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

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
        """Every parameter's layout by fqn, or None where the model is not here."""
        if self.inventory is None:
            return None
        return {parameter.fqn: parameter for parameter in layouts(self.graph, self.inventory)}

    def version(self) -> Version:
        num_errors = sum(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)
        return Version(self.name, plan_hash(self.graph), self.graph.world_size, num_errors)

    def place(self, path: str) -> str:
        """Where `mesh.tp` is set: `llama.plan:7 (param tp_size)`; empty for a default or an artifact."""
        if self.plan is None or not path or path not in self.plan.spans:
            return ""
        span = self.plan.spans[path]
        steps = self.plan.origins.get(path, ())
        if steps and steps[0].kind == "set":
            return steps[0].text
        via = [f"param {step.text}" if step.kind == "parameter" else step.text for step in steps[1:]]
        return f"{span.file}:{span.line}" + (f" ({', '.join(via)})" if via else "")

    def broken(self, subject: str) -> tuple[BrokenExpectation, ...]:
        """The expectations on a fact that the checks found broken."""
        expectations = self.plan.expectations if self.plan else ()
        return tuple(
            BrokenExpectation(
                finding.code.code, str(finding.severity), f"{expectation.span.file}:{expectation.span.line}"
            )
            for expectation in expectations
            for finding in self.diagnostics
            if expectation.subject == subject and _is_about(finding, expectation.span.line)
            if finding.primary.span.file == expectation.span.file
        )


def _is_about(finding: Diagnostic, line: int) -> bool:
    return finding.primary.span.line == line and finding.severity is Severity.ERROR


def side_of(checked: Checked, *, name: str) -> Side | None:
    """The side that a checked plan is; None where it is too broken to have a graph at all.

    A plan that breaks rules has a draft graph, which tells what it would do.
    """
    graph = checked.draft()
    if graph is None:
        return None
    return Side(name, graph, checked.inventory, checked.plan, checked.diagnostics)
