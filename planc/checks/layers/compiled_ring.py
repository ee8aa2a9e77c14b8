"""Ring attention inside a module that is traced as one graph."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family
from planc.plan.spec import Rotate
from planc.source import Span
from planc.vocab import MeshDim

CODE = Code("P806", "compiled-ring", "ring attention can't be traced as one graph")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding for each rule that compiles modules with attention under `rotate = ring`."""
    plan = subject.plan
    cp, compilation = plan.context_parallel, plan.compile
    if cp is None or cp.rotate is not Rotate.RING or compilation is None or not compilation.fullgraph:
        return
    attentions = [f"{attention.fqn}." for attention in subject.inventory.attentions]
    seen: set[Span] = set()
    for fqn, span in subject.bound.compiled.items():
        if span in seen or not any(attention.startswith(f"{fqn}.") for attention in attentions):
            continue
        seen.add(span)
        yield CODE.at(
            span,
            f"`{family(subject.inventory, fqn)}` contains attention",
            secondary=(Label(plan.span("context_parallel.rotate"), "ring attention"),),
            notes=("ring attention communicates while it computes, which torch.compile can't trace",),
            help="write `rotate = allgather` or `rotate = ulysses`, or compile only the `mlp`, or "
            "`fullgraph = false` to compile the code around the ring",
        )
