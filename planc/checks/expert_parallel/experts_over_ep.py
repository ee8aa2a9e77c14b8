"""Experts and ranks that expert parallelism can't share equally."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planc.checks.expert_parallel.not_dispatchable import CODE as NOT_DISPATCHABLE
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.routers import num_stacked
from planc.layouts.families import family
from planc.plan.expert_shards import num_sharing, shares_experts, shares_features
from planc.tables import plural
from planc.vocab import SHARD_DIMS, MeshDim

CODE = Code("P621", "experts-over-ep", "experts can't be shared equally by these ranks")


@reports(CODE, unless=(NOT_DISPATCHABLE,))
def check(subject: Subject) -> Findings:
    """One finding at the size: ranks, experts, or shards of experts that don't divide."""
    spec, plan = subject.plan.expert_parallel, subject.plan
    if spec is None or spec.size == 1:
        return
    if spec.on == (MeshDim.DP_SHARD, MeshDim.TP) and plan.mesh.cp > 1:
        yield CODE.at(
            spec.span,
            "ranks of dp_shard and tp are not neighbors: those of cp are between them",
            secondary=(Label(plan.span("mesh.cp"), plural(plan.mesh.cp, "rank")),),
            help="write `expert_parallel on dp_shard, cp, tp {`",
        )
        return
    ranks = prod(map(plan.mesh.size, spec.on))
    numbers = {num: fqn for fqn, num in reversed([*_numbers(subject)])}
    fitting = [size for size in divisors(ranks) if size > 1 and all(num % size == 0 for num in numbers)]
    help = f"set `size` to {choices(fitting, near=spec.size)}" if fitting else "remove this block"
    if ranks % spec.size:
        yield CODE.at(
            plan.span("expert_parallel.size"),
            f"{spec.size} is not a factor of {' x '.join(spec.on)} = {ranks}",
            secondary=tuple(
                Label(plan.span(f"mesh.{mesh_dim}"), plural(plan.mesh.size(mesh_dim), "rank"))
                for mesh_dim in spec.on
            ),
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
    yield from _shards(subject)


def _numbers(subject: Subject) -> Iterator[tuple[str, int]]:
    """The modules that tokens are dispatched to, with their numbers of experts."""
    for fqn in subject.bound.experts:
        module = subject.inventory.get(fqn)
        assert module is not None, f"{fqn} was matched in this inventory"
        yield fqn, num_stacked(module)


def _shards(subject: Subject) -> Findings:
    """One finding if the ranks with the same experts can share neither those nor their features equally."""
    bound, sharing = subject.bound, num_sharing(subject.plan)
    sizes = {mesh_dim: subject.plan.mesh.size(mesh_dim) for mesh_dim in SHARD_DIMS}
    dims = " or ".join(f"`{mesh_dim}`" for mesh_dim, size in sizes.items() if size > 1)
    for fqn, num_experts in _numbers(subject):
        if shares_experts(bound, fqn) or shares_features(bound, fqn):
            continue
        size = bound.plan.expert_parallel.size if bound.plan.expert_parallel else 1
        yield CODE.at(
            subject.plan.span("expert_parallel.size"),
            f"each rank has {num_experts // size} experts of `{family(subject.inventory, fqn)}`",
            notes=(f"FSDP can share neither them nor their features equally among {sharing} ranks",),
            help=f"make {dims} smaller, with `dp_replicate` larger",
        )
        return
