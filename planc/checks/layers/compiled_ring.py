"""Ring attention inside a module that is traced as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.layouts.families import family
from planc.plan.spec import Rotate
from planc.source import Span
from planc.vocab import MeshDim

CODE = Code("P806", "compiled-ring", "ring attention cannot be traced as a whole")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each rule that compiles modules with an attention, where keys go round in a ring."""
    plan = subject.plan
    cp, compilation = plan.context_parallel, plan.compile
    if cp is None or cp.rotate is not Rotate.RING or compilation is None or not compilation.fullgraph:
        return
    attentions = [f"{one.fqn}." for one in subject.inventory.attentions]
    seen: set[Span] = set()
    for fqn, span in subject.bound.compiled.items():
        if span in seen or not any(one.startswith(f"{fqn}.") for one in attentions):
            continue
        seen.add(span)
        yield CODE.at(
            span,
            f"`{family(subject.inventory, fqn)}` has attention inside",
            secondary=(Label(plan.span("context_parallel.rotate"), "by ring"),),
            notes=("the ring sends while it computes, which torch.compile takes into no graph",),
            help="write `rotate = allgather` or `rotate = ulysses`, or compile the `mlp` alone; "
            "`fullgraph = false` compiles what is around the ring",
        )


RULE = Rule((CODE,), check, over=MeshDim.CP)
