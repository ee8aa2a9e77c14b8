"""Parameters that Muon would update, and that planc can't take apart into matrices."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.matrices import matrices
from planc.inventory.schema import Kind
from planc.layouts.families import as_patterns, families, quoted
from planc.plan.optimizer import Muon
from planc.source import Span

CODE = Code("P718", "no-matrix", "Muon can't take a parameter as a matrix")

_NO_MATRIX = "is not a matrix [out, in]"
_TABLES = (Kind.LINEAR, Kind.EMBEDDING, Kind.OTHER)
"""Modules that have matrices with a row for each output, which a plan may give to Muon."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each reason and place: at the optimizer, or at a group with `rest = false`."""
    kind = subject.plan.optimizer.kind
    if not isinstance(kind, Muon):
        return
    by_reason: dict[tuple[str, Span], list[str]] = {}
    for fqn, reason, span in _problems(subject):
        by_reason.setdefault((reason, span), []).append(fqn)
    for (reason, span), fqns in by_reason.items():
        patterns = as_patterns(families(subject.inventory, fqns))
        listed = ", ".join(f'"{pattern}"' for pattern in patterns)
        rule = listed if len(patterns) == 1 else f"[{listed}]"
        yield CODE.at(
            span,
            f"{quoted(patterns)} {reason}",
            notes=("it would orthogonalize another matrix than the layer's own",),
            help=f"add `{rule} -> group(rest = true)`: then the optimizer of `rest` updates it",
        )


def _problems(subject: Subject) -> Iterator[tuple[str, str, Span]]:
    """(parameter, why it can't be taken, where the plan gives it to Muon)."""
    hidden = {matrix.fqn: matrix for matrix in matrices(subject.inventory)}
    for fqn, module, parameter in subject.inventory.parameters():
        rest, span = subject.bound.rests.get(fqn, (fqn not in hidden, subject.plan.span("optimizer.kind")))
        if rest or fqn in subject.bound.frozen:
            continue
        if fqn in hidden:
            reason = hidden[fqn].problem
        else:
            reason = "" if len(parameter.shape) == 2 and module.kind in _TABLES else _NO_MATRIX
        if reason:
            yield fqn, reason, span
