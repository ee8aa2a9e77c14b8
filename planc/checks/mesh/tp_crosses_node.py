"""Tensor parallelism over the network between nodes."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import fits_nodes, legal_sizes
from planc.diagnostics import Code, Label, Severity
from planc.vocab import MeshDim

CODE = Code("P304", "tp-crosses-node", "tensor parallelism crosses nodes", Severity.WARNING)


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One warning at `mesh.tp` when some tp group has ranks of two nodes."""
    mesh = subject.plan.mesh
    if fits_nodes(mesh, tp=mesh.tp):
        return
    yield CODE.at(
        subject.plan.span("mesh.tp"),
        f"tp = {mesh.tp} ranks do not fit evenly on nodes of {mesh.devices_per_node} devices",
        secondary=(Label(subject.plan.span("mesh.devices_per_node"), "the devices of a node"),),
        notes=("every layer would wait on inter-node collectives, in forward and backward",),
        help=f"set `tp` to {legal_sizes(subject) or '1'}",
    )
