"""The layout in which a module hands on its output to modules after it."""

from __future__ import annotations

from planc.layouts.flow import Flow
from planc.plan.bind import BoundPlan
from planc.styles.edges import normal
from planc.vocab import Placement


def handed_on(bound: BoundPlan, flow: Flow, fqn: str) -> Placement | None:
    """The layout that a style redistributes the output to, or that the flow finds; None if unknown."""
    assignment = bound.styles.get(fqn)
    if assignment is not None and assignment.style.prepares:
        return normal(assignment.use.output)
    value = flow.leaving.get(fqn)
    return normal(value.layout) if value is not None and value.layout is not None else None
