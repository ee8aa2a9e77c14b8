"""SGD with `nesterov` and without momentum."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.optimizer import Sgd

CODE = Code("P716", "nesterov-without-momentum", "`nesterov` needs momentum")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at an SGD with `nesterov` and no momentum."""
    kind = subject.plan.optimizer.kind
    if isinstance(kind, Sgd) and kind.nesterov and not kind.momentum:
        yield CODE.at(
            subject.plan.span("optimizer.kind.momentum"),
            "momentum = 0",
            help="write `momentum = 0.9`, or `nesterov = false`",
        )


RULE = Rule((CODE,), check)
