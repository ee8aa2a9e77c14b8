"""Tensor parallelism over the network between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from planc.checks.support.attention_heads import num_heads
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity
from planc.vocab import MeshDim

CODE = Code("P304", "tp-crosses-node", "tensor parallelism crosses nodes", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at `mesh.tp` when some tp group has ranks of two nodes."""
    mesh, per_node = subject.plan.mesh, subject.plan.mesh.devices_per_node
    if per_node is None or per_node % mesh.tp == 0 or mesh.world_size <= per_node:
        return
    sizes = divisors(gcd(per_node, num_heads(subject)))
    yield CODE.at(
        subject.plan.span("mesh.tp"),
        f"tp = {mesh.tp} ranks do not fit evenly on nodes of {per_node} devices",
        secondary=(Label(subject.plan.span("mesh.devices_per_node"), "the devices of a node"),),
        notes=("every layer would wait on inter-node collectives, in forward and backward",),
        help=f"set `tp` to {choices(sizes, near=min(mesh.tp, per_node))}",
    )


RULE = Rule((CODE,), check, over=MeshDim.TP)
