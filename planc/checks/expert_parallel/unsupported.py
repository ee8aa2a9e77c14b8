"""What expert parallelism does not support yet."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family
from planc.source import Span
from planc.vocab import MeshDim, outwards

CODE = Code("P623", "experts-unsupported", "expert parallelism does not support this yet")

_REMEDIES = {
    MeshDim.PP: "set `pp` to 1",
    MeshDim.CP: "set `cp` to 1",
    MeshDim.TP: "set `tp` to 1",
}


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each other part of the plan that it was not shown to be exact with."""
    spec = subject.plan.expert_parallel
    if spec is None or not subject.bound.experts:
        return
    for span, text, help in _unsupported(subject):
        yield CODE.at(
            span,
            text,
            secondary=(Label(spec.span, "experts are on different ranks"),),
            help=f"{help}, or remove the block `expert_parallel`",
        )


def _unsupported(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help)."""
    plan, bound, inventory = subject.plan, subject.bound, subject.inventory
    for mesh_dim, remedy in _REMEDIES.items():
        if (size := plan.mesh.size(mesh_dim)) > 1:
            yield plan.span(f"mesh.{mesh_dim}"), f"{mesh_dim} = {size}", remedy
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield plan.span("fsdp.cpu_offload"), "shards in host memory", "set `cpu_offload` to false"
    if plan.elastic is not None:
        yield plan.span("elastic"), "smaller meshes", "remove the block `elastic`"
    for what, modules in (("compiled", bound.compiled), ("offloaded", bound.offloaded)):
        held = next((fqn for name in bound.experts for fqn in outwards(name) if fqn in modules), None)
        if held is not None:
            rule = {**bound.checkpointed, **bound.compiled}[held]
            name = family(inventory, held)
            yield rule, f"`{name}` is {what}, with experts inside", f"name other modules than `{name}`"
