"""A tensor_parallel block that divides nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P413", "no-tensor-parallel-rules", "nothing is divided over tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding when the block has no rules and `auto` finds nothing either."""
    spec = subject.plan.tensor_parallel
    if spec is None or spec.rules:
        return
    if spec.auto is None:
        help = "write `auto` for the model's own plan" if subject.inventory.tp_plan else "add rules"
        yield CODE.at(spec.span, "this block has neither rules nor `auto`", help=help)
    elif not subject.inventory.tp_plan:
        text = f"{subject.inventory.architecture} has no tensor-parallel plan of its own"
        yield CODE.at(spec.auto, text, help="name the modules in rules: colwise, rowwise, embedding_rowwise")


RULE = Rule((CODE,), check, over=MeshDim.TP)
