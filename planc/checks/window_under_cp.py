"""Sliding windows under context parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.vocab import MeshDim

CODE = Code("P602", "window-under-cp", "context parallelism does not know sliding windows")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the block when some layer sees less than the sequence."""
    spec, length = subject.plan.context_parallel, subject.plan.data.sequence_length
    narrow = [a for a in subject.inventory.attentions if a.window is not None and a.window < length]
    if spec is None or not narrow:
        return
    yield CODE.at(
        spec.span,
        f"{len(narrow)} layers see {narrow[0].window} of {length} tokens",
        secondary=(Label(subject.plan.span("data.sequence_length"), "longer than the window"),),
        notes=(f"the first is `{narrow[0].fqn}`",),
        help=f"set cp = 1, or sequence_length to at most {min(a.window or 0 for a in narrow)}",
    )


RULE = Rule((CODE,), check, over=MeshDim.CP)
