"""torch.compile of layers that are sharded over tp."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.vocab import MeshDim

CODE = Code("P805", "compiled-under-tp", "torch.compile is not supported under tensor parallelism")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `compile` if layers are sharded over tp."""
    plan, bound = subject.plan, subject.bound
    if plan.compile is None or plan.tensor_parallel is None or not bound.compiled:
        return
    yield CODE.at(
        plan.compile.span,
        f"compiled with tp = {plan.mesh.tp}",
        secondary=(Label(plan.tensor_parallel.span, "layers are sharded here"),),
        notes=("with sequence parallelism and FSDP, a run would silently train on wrong gradients",),
        help="set `tp` to 1 and raise `dp_shard`, or remove `compile`",
    )


RULE = Rule((CODE,), check, over=MeshDim.TP)
