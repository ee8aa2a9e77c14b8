"""Features that expert parallelism does not support yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.routers import routers
from planc.layouts.families import family
from planc.layouts.types import takes_shards
from planc.source import Span
from planc.vocab import outwards

CODE = Code("P623", "experts-unsupported", "expert parallelism does not support this yet")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each other part of the plan that it was not shown to be exact with."""
    plan = subject.plan
    if plan.expert_parallel is None:
        return
    label = Label(plan.expert_parallel.span, "experts are on different ranks")
    parts = (*_unsupported(subject), *_on_shards(subject)) if subject.bound.experts else ()
    for span, text, help in parts:
        yield CODE.at(span, text, secondary=(label,), help=f"{help}, or remove the block `expert_parallel`")
    if subject.bound.capped:
        label = Label(plan.span("expert_parallel.capacity"), "the first tokens of each sequence are taken")
        for span, text, help in _apart(subject):
            yield CODE.at(span, text, secondary=(label,), help=f"{help}, or remove `capacity`")


def _apart(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help) of all that keeps a sequence from being counted whole."""
    plan, bound = subject.plan, subject.bound
    if plan.mesh.cp > 1:
        yield plan.span("mesh.cp"), "ranks have parts of sequences", "set `cp` to 1"
    if on := [module.fqn for module in takes_shards(bound) if module.fqn in bound.capped]:
        text = f"ranks of tp have parts of sequences at `{family(subject.inventory, on[0])}`"
        assert plan.expert_parallel is not None, "a capacity is its key"
        yield plan.expert_parallel.span, text, "leave `tp` out of `expert_parallel on`"
    if plan.data.packing.isolates:
        text = "documents of a sequence do not affect each other"
        yield plan.span("data.packing"), text, "set `packing` to attend"
    if (held := _around(bound.capped, bound.compiled)) is not None:
        name = family(subject.inventory, held)
        text = f"`{name}` is compiled, with experts inside whose dropped tokens are counted"
        yield bound.compiled[held], text, "compile other modules, such as `model.layers.*.self_attn`"


def _unsupported(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help)."""
    plan, bound, inventory = subject.plan, subject.bound, subject.inventory
    if plan.fsdp is not None and plan.fsdp.cpu_offload:
        yield plan.span("fsdp.cpu_offload"), "shards in host memory", "set `cpu_offload` to false"
    if plan.elastic is not None:
        yield plan.span("elastic"), "smaller meshes", "remove the block `elastic`"
    if (held := _around(bound.experts, bound.offloaded)) is not None:
        name = family(inventory, held)
        text = f"`{name}` is offloaded, with experts inside"
        yield bound.checkpointed[held], text, f"name other modules than `{name}`"
    held = _around(bound.experts, bound.compiled)
    if held is not None and plan.compile is not None and plan.compile.fullgraph:
        name = family(inventory, held)
        text = f"`{name}` is one compiled graph, with experts inside"
        yield bound.compiled[held], text, "write `fullgraph = false` to compile the code around the experts"


def _on_shards(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help) of all that does not go with shards of sequences at experts."""
    plan, bound, inventory = subject.plan, subject.bound, subject.inventory
    experts = [module.fqn for module in takes_shards(bound)]
    if not experts or any(clash.consumer in experts for clash in subject.flow.clashes):
        return
    seen = set()
    for fqn in experts:
        if (styled := bound.styles.get(fqn)) is not None and styled.span not in seen:
            seen.add(styled.span)
            text = f"`{family(inventory, fqn)}` is sharded over tp, whose ranks have different experts"
            yield styled.span, text, "leave this rule out"
    span = plan.span("expert_parallel")
    if others := [router.experts for router in routers(inventory) if router.experts not in experts]:
        text = f"`{family(inventory, others[0])}` would be whole on ranks of tp that route shards elsewhere"
        yield span, text, "write `auto` in this block"
    if plan.fsdp is None:
        text = f"no `fsdp` shards `{family(inventory, experts[0])}` over the ranks that hold the same experts"
        yield span, text, "add a block `fsdp on dp_shard`"


def _around(experts: Collection[str], modules: Collection[str]) -> str | None:
    """The first of these modules that has experts inside, or is one."""
    return next((fqn for name in experts for fqn in outwards(name) if fqn in modules), None)
