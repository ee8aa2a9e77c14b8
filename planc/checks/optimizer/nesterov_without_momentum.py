"""SGD with `nesterov` and without momentum."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.optimizer import Sgd

CODE = Code("P716", "nesterov-without-momentum", "`nesterov` needs momentum")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at an SGD with `nesterov` and no momentum."""
    kind = subject.plan.optimizer.kind
    if isinstance(kind, Sgd) and kind.nesterov and not kind.momentum:
        yield CODE.at(
            subject.plan.span("optimizer.kind.momentum"),
            "momentum = 0",
            help="write `momentum = 0.9`, or `nesterov = false`",
        )
