"""Mesh dims that no block of the plan uses."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import covering_block
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.vocab import MeshDim

CODE = Code("P306", "unused-mesh-dim", "no block uses this mesh dim")


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for pp, cp and tp, if several ranks would do the same work."""
    plan = subject.plan
    blocks = {
        MeshDim.PP: (plan.pipeline, "add `pipeline on pp {}`"),
        MeshDim.CP: (plan.context_parallel, _context_parallel(subject)),
        MeshDim.TP: (plan.tensor_parallel, _tensor_parallel(subject)),
    }
    for mesh_dim, (block, remedy) in blocks.items():
        size = plan.mesh.size(mesh_dim)
        if size > 1 and block is None:
            yield CODE.at(
                plan.span(f"mesh.{mesh_dim}"),
                f"{size} ranks would all do the same work",
                help=f"{remedy}, or set `{mesh_dim}` to 1",
            )


def _context_parallel(subject: Subject) -> str:
    """The block to add, with one that sums gradients, since ranks of cp see different tokens."""
    fsdp = subject.plan.fsdp
    covering = "" if fsdp and MeshDim.CP in fsdp.on else f" and {covering_block(subject, MeshDim.CP)}"
    return f"add `context_parallel on cp {{}}`{covering}"


def _tensor_parallel(subject: Subject) -> str:
    if subject.inventory.tp_plan:
        return "add `tensor_parallel on tp { auto }`"
    return "add a `tensor_parallel on tp` block with rules; the model has no tensor-parallel plan for `auto`"
