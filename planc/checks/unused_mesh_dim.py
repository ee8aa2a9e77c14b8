"""Mesh dims of the model on which nothing works."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P306", "unused-mesh-dim", "no block works on this mesh dim")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for tp and for cp, where several ranks would do the same work."""
    plan = subject.plan
    blocks = {
        MeshDim.CP: (plan.context_parallel, "context_parallel on cp { ... }"),
        MeshDim.TP: (plan.tensor_parallel, "tensor_parallel on tp { auto }"),
    }
    for mesh_dim, (block, example) in blocks.items():
        size = plan.mesh.size(mesh_dim)
        if size > 1 and block is None:
            yield CODE.at(
                plan.span(f"mesh.{mesh_dim}"),
                f"{size} ranks would all compute the same",
                help=f"add `{example}`, or set {mesh_dim} = 1",
            )


RULE = Rule((CODE,), check)
