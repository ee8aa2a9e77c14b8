"""Code that depends on values of tensors, inside a module that is traced as one graph."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.routers import is_dispatchable
from planc.layouts.families import family
from planc.plan.spec import Plan
from planc.source import Span
from planc.vocab import DType, outwards

CODE = Code("P815", "compiled-loop", "a loop over experts can't be traced as one graph")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that compiles modules with such code inside."""
    compilation = subject.plan.compile
    if compilation is None or not compilation.fullgraph:
        return
    seen: set[Span] = set()
    for loop, label in _loops(subject):
        for fqn in outwards(loop):
            span = subject.bound.compiled.get(fqn)
            if span is None or span in seen:
                continue
            seen.add(span)
            outer, inner = family(subject.inventory, fqn), family(subject.inventory, loop)
            yield CODE.at(
                span,
                f"`{inner}` loops over the experts that have tokens"
                + ("" if outer == inner else f", inside `{outer}`"),
                secondary=() if label is None else (label,),
                notes=("which of them have tokens is known as a step runs, and torch.compile traces before",),
                help="write `fullgraph = false`, which leaves the loop uncompiled, or compile other modules",
            )


def _loops(subject: Subject) -> Iterator[tuple[str, Label | None]]:
    """The modules whose own code is such a loop, and what in the plan makes it one."""
    label = _in_float64(subject.plan)
    for module in subject.inventory.modules:
        if module.reads_values:
            yield module.fqn, None
        elif label is not None and is_dispatchable(subject.inventory, module):
            yield module.fqn, label


def _in_float64(plan: Plan) -> Label | None:
    """The line by which experts are in float64: a run then takes transformers' loop over them."""
    if plan.model.dtype is DType.FLOAT64:
        place = "model.dtype"
    elif plan.fsdp is not None and plan.fsdp.param_dtype is DType.FLOAT64:
        place = "fsdp.param_dtype"
    else:
        return None
    return Label(plan.span(place), "experts in float64 are multiplied one by one")
