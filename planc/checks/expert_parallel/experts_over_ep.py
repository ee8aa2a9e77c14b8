"""Experts and ranks that expert parallelism can't share equally."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.expert_parallel.not_dispatchable import CODE as NOT_DISPATCHABLE
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.routers import num_stacked
from planc.layouts.families import family
from planc.plan.spec import ExpertParallelSpec

CODE = Code("P621", "experts-over-ep", "experts can't be shared equally by these ranks")


@reports(CODE, unless=(NOT_DISPATCHABLE,))
def check(subject: Subject) -> Findings:
    """One finding at the size: ranks, experts, or shards of experts that don't divide."""
    spec, plan = subject.plan.expert_parallel, subject.plan
    if spec is None or spec.size == 1:
        return
    (mesh_dim,) = spec.on
    ranks = plan.mesh.size(mesh_dim)
    numbers = {num: fqn for fqn, num in reversed([*_numbers(subject)])}
    fitting = [size for size in divisors(ranks) if size > 1 and all(num % size == 0 for num in numbers)]
    help = f"set `size` to {choices(fitting, near=spec.size)}" if fitting else "remove this block"
    if ranks % spec.size:
        yield CODE.at(
            plan.span("expert_parallel.size"),
            f"{spec.size} is not a factor of {mesh_dim} = {ranks}",
            secondary=(Label(plan.span(f"mesh.{mesh_dim}"), f"{ranks} ranks"),),
            help=help,
        )
        return
    for num_experts, fqn in numbers.items():
        if num_experts % spec.size:
            yield CODE.at(
                plan.span("expert_parallel.size"),
                f"{num_experts} experts of `{family(subject.inventory, fqn)}` over {spec.size} ranks",
                help=help,
            )
            return
    yield from _shards(subject, spec, ranks=ranks, numbers=numbers)


def _numbers(subject: Subject) -> Iterator[tuple[str, int]]:
    """The modules that tokens are dispatched to, with their numbers of experts."""
    for fqn in subject.bound.experts:
        module = subject.inventory.get(fqn)
        assert module is not None, f"{fqn} was matched in this inventory"
        yield fqn, num_stacked(module)


def _shards(subject: Subject, spec: ExpertParallelSpec, *, ranks: int, numbers: dict[int, str]) -> Findings:
    """One finding if the ranks with the same experts can't share those equally."""
    sharing = ranks // spec.size
    for num_experts, fqn in numbers.items():
        own = num_experts // spec.size
        if own % sharing:
            larger = [size for size in divisors(ranks) if size > 1 and _fits(numbers, size, ranks)]
            fitting = f"set `size` to {choices(larger, near=spec.size)}, or " if larger else ""
            yield CODE.at(
                subject.plan.span("expert_parallel.size"),
                f"each rank has {own} experts of `{family(subject.inventory, fqn)}`",
                notes=(f"FSDP would shard them over {sharing} ranks, and leave some without any",),
                help=f"{fitting}use a smaller `{spec.on[0]}` with `dp_replicate`",
            )
            return


def _fits(numbers: dict[int, str], size: int, ranks: int) -> bool:
    return all(number % size == 0 and number // size % (ranks // size) == 0 for number in numbers)
