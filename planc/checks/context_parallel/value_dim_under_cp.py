"""Heads whose values are of another size than their keys, where both travel together."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.spec import Rotate
from planc.vocab import MeshDim

CODE = Code("P606", "value-dim-under-cp", "keys and values differ in size, but travel together")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the block for ring and allgather, whose messages hold keys and values in one tensor."""
    spec = subject.plan.context_parallel
    if spec is None or spec.rotate is Rotate.ULYSSES:
        return
    odd = next((one for one in subject.inventory.attentions if one.value_dim is not None), None)
    if odd is not None:
        yield CODE.at(
            spec.span,
            f"keys of {odd.head_dim}, values of {odd.value_dim} in `{odd.fqn}`",
            secondary=(Label(subject.plan.span("context_parallel.rotate"), f"{spec.rotate} sends both"),),
            help="write `rotate = ulysses`",
        )


RULE = Rule((CODE,), check, over=MeshDim.CP)
