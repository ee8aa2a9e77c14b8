"""Features that expert parallelism does not support yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family
from planc.plan.bind import BoundPlan
from planc.source import Span
from planc.vocab import outwards

CODE = Code("P623", "experts-unsupported", "expert parallelism does not support this yet")


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
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield plan.span("fsdp.cpu_offload"), "shards in host memory", "set `cpu_offload` to false"
    if plan.elastic is not None:
        yield plan.span("elastic"), "smaller meshes", "remove the block `elastic`"
    if (held := _around(bound, bound.offloaded)) is not None:
        name = family(inventory, held)
        text = f"`{name}` is offloaded, with experts inside"
        yield bound.checkpointed[held], text, f"name other modules than `{name}`"
    held = _around(bound, bound.compiled)
    if held is not None and plan.compile is not None and plan.compile.fullgraph:
        name = family(inventory, held)
        text = f"`{name}` is one compiled graph, with experts inside"
        yield bound.compiled[held], text, "write `fullgraph = false` to compile the code around the experts"


def _around(bound: BoundPlan, modules: Collection[str]) -> str | None:
    """The first of these modules that has experts inside, or is one."""
    return next((fqn for name in bound.experts for fqn in outwards(name) if fqn in modules), None)
