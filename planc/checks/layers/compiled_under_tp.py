"""torch.compile of layers that are divided over tp."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.vocab import MeshDim

CODE = Code("P805", "compiled-under-tp", "modules cannot be compiled under tensor parallelism")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `compile` where layers are divided over tp."""
    plan, bound = subject.plan, subject.bound
    if plan.compile is None or plan.tensor_parallel is None or not bound.compiled:
        return
    yield CODE.at(
        plan.compile.span,
        f"compiled with tp = {plan.mesh.tp}",
        secondary=(Label(plan.tensor_parallel.span, "layers are divided here"),),
        notes=("with sequence parallelism and FSDP, a run trains on wrong gradients without a word",),
        help="set tp = 1 and shard parameters over more ranks, or remove `compile`",
    )


RULE = Rule((CODE,), check, over=MeshDim.TP)
