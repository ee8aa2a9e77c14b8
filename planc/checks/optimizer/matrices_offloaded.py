"""Muon with parameters in host memory, or with experts on ranks of their own."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.optimizer import Muon

CODE = Code("P719", "matrices-offloaded", "muon does not work with this sharding")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `fsdp.cpu_offload`, and one at `expert_parallel`."""
    plan = subject.plan
    if isinstance(plan.optimizer.kind, Muon) and plan.expert_parallel is not None:
        yield CODE.at(
            plan.expert_parallel.span,
            "ranks would hold different experts",
            secondary=(Label(plan.span("optimizer.kind"), "orthogonalizes matrices"),),
            notes=("planc has not shown that their owners compute what one process does",),
            help="leave out `expert_parallel`, or write `kind = adamw(...)`",
        )
    if isinstance(plan.optimizer.kind, Muon) and plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield CODE.at(
            plan.span("fsdp.cpu_offload"),
            "gradients and momentum would be in host memory",
            secondary=(Label(plan.span("optimizer.kind"), "orthogonalizes matrices"),),
            notes=("CPUs would take minutes for the products of a step",),
            help="leave out `cpu_offload`, or write `kind = adamw(...)`",
        )
