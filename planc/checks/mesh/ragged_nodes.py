"""World sizes that do not fill their nodes."""

from __future__ import annotations

from planc.checks.support.legal_values import choices, multiples_around
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code

CODE = Code("P305", "ragged-nodes", "the ranks do not fill whole nodes")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding when several nodes are needed and the last one is not filled."""
    mesh = subject.plan.mesh
    per_node, world_size = mesh.devices_per_node, mesh.world_size
    if per_node is None or world_size <= per_node or world_size % per_node == 0:
        return
    whole = multiples_around(world_size, of=per_node)
    yield CODE.at(
        subject.plan.span("mesh.devices_per_node"),
        f"{world_size} ranks on nodes of {per_node} devices",
        notes=("torch requires every node of a device mesh to have equally many ranks",),
        help=f"set the mesh to {choices(whole, near=world_size)} ranks, or correct `devices_per_node`",
    )
