"""Comparison of replicas in plans without replicas."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code

CODE = Code("P743", "no-replicas", "no replicas to compare")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error if every mesh dim shards every parameter; under tp, norms at least are replicated."""
    plan = subject.plan
    if plan.guard is None or plan.guard.replicas_every is None:
        return
    dividing = plan.fsdp.on if plan.fsdp else ()
    wide = [mesh_dim for mesh_dim, size in plan.mesh.sizes.items() if size > 1]
    if all(mesh_dim in dividing for mesh_dim in wide):
        text = f"every parameter is sharded over {' and '.join(wide)}" if wide else "the mesh has one rank"
        yield CODE.at(
            plan.span("guard.replicas_every"),
            text,
            help="remove `replicas_every`, or write `replicas_every = none`",
        )
