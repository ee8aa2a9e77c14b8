"""Sliding windows under ring attention."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.spec import Rotate
from planc.vocab import MeshDim

CODE = Code("P602", "window-under-cp", "ring attention does not support sliding windows")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding at the block for ring, which masks no blocks, if some layer has a window."""
    spec, length = subject.plan.context_parallel, subject.plan.data.sequence_length
    narrow = [a for a in subject.inventory.attentions if a.window is not None and a.window < length]
    if spec is None or spec.rotate is not Rotate.RING or not narrow:
        return
    layers = "1 layer attends" if len(narrow) == 1 else f"{len(narrow)} layers attend"
    yield CODE.at(
        spec.span,
        f"{layers} to {narrow[0].window} of {length} tokens",
        secondary=(Label(subject.plan.span("data.sequence_length"), "longer than the window"),),
        notes=(f"the first of them is `{narrow[0].fqn}`",),
        help=f"write `rotate = {'allgather' if narrow[0].value_dim is None else 'ulysses'}`",
    )
