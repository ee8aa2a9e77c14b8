"""Heads whose keys and values differ in size, under rotations that send both in one tensor."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.spec import Rotate
from planc.vocab import MeshDim

CODE = Code("P606", "value-dim-under-cp", "keys and values of different sizes share messages")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding at the block for ring and allgather, which send keys and values in one tensor."""
    spec = subject.plan.context_parallel
    if spec is None or spec.rotate is Rotate.ULYSSES:
        return
    odd = next(
        (attention for attention in subject.inventory.attentions if attention.value_dim is not None), None
    )
    if odd is not None:
        yield CODE.at(
            spec.span,
            f"`{odd.fqn}` has keys of {odd.head_dim} and values of {odd.value_dim} features",
            secondary=(
                Label(
                    subject.plan.span("context_parallel.rotate"), f"`{spec.rotate}` sends both in one tensor"
                ),
            ),
            help="write `rotate = ulysses`",
        )
