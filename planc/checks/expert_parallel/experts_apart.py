"""Experts on different ranks that FSDP does not gather by themselves."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family

CODE = Code("P622", "experts-apart", "experts on different ranks need FSDP units of their own")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for a plan without FSDP over the mesh dim, and for each unit with other modules."""
    bound, plan = subject.bound, subject.plan
    spec, fsdp = plan.expert_parallel, plan.fsdp
    if spec is None or spec.size == 1:
        return
    (mesh_dim,) = spec.on
    if fsdp is None or mesh_dim not in fsdp.on:
        yield CODE.at(
            spec.span,
            f"no `fsdp` on {mesh_dim}, whose ranks share the experts",
            notes=("nothing would sum the gradients of the other weights, which all of these ranks have",),
            help=f'add `fsdp on {mesh_dim} {{ "{_layers(subject)}" -> unit }}`',
        )
    for group in bound.units:
        held = [fqn for fqn in group.fqns if fqn in bound.experts]
        if held and len(group.fqns) > 1:
            yield CODE.at(
                group.span,
                f"`{family(subject.inventory, held[0])}` would be gathered with other modules",
                secondary=(Label(bound.experts[held[0]], "dispatched to here"),),
                notes=("ranks hold different experts, and shards of them over fewer ranks",),
                help=f'write a rule of its own: `"{family(subject.inventory, held[0])}" -> unit`',
            )


def _layers(subject: Subject) -> str:
    blocks = subject.inventory.blocks
    return f"{blocks[0]}.*" if blocks else "**"
