"""Features that adapters do not support yet."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family
from planc.plan.optimizer import Muon
from planc.source import Span

CODE = Code("P771", "adapters-unsupported", "adapters do not support this yet")

_SHOWN = ("colwise", "rowwise", "rowwise_split_input", "replicate")
"""The styles of layers with adapters that were compared with one process."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each other part of the plan that they were not shown to be exact with."""
    spec = subject.plan.adapter
    for span, text, help in _unsupported(subject) if spec else ():
        assert spec is not None, "there is nothing to find without the block"
        yield CODE.at(
            span,
            text,
            secondary=(Label(spec.span, "layers have adapters"),),
            help=f"{help}, or remove the block `adapter`",
        )


def _unsupported(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help)."""
    plan, styles = subject.plan, subject.bound.styles
    styled = [fqn for fqn in subject.bound.adapted if plan.mesh.tp > 1 and fqn in styles]
    others = [fqn for fqn in styled if styles[fqn].style.name not in _SHOWN]
    # One finding for all layers of a rule.
    for span, name in dict.fromkeys((styles[fqn].span, family(subject.inventory, fqn)) for fqn in others):
        yield span, f"`{name}` has an adapter", f"leave `{name}` without an adapter"
    if isinstance(plan.optimizer.kind, Muon):
        yield plan.span("optimizer.kind"), "Muon of adapters", "write `kind = adamw(lr = 1e-4)`"
