"""Parameters with fewer rows than FSDP has ranks to shard them over."""

from __future__ import annotations

from math import prod

from planc.checks.support.legal_values import divisors
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.inventory.schema import Module, Parameter
from planc.record import record
from planc.tables import plural
from planc.vocab import Replicate, Shard

CODE = Code("P520", "empty-shards", "FSDP leaves some ranks without rows", Severity.NOTE)

_WORTH_SAYING = 0.05
"""The least share of a rank's parameters that is worth a note; a router's few rows cost nothing."""


@record
class _Divided:
    """Parameters of `num_rows` rows on each rank of tp, and how many elements they have together."""

    name: str
    num_rows: int
    num_elements: int


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One note at `fsdp` for each number of rows, if rank 0 holds far more than an even share."""
    fsdp = subject.plan.fsdp
    if fsdp is None:
        return
    num_ranks = prod(subject.plan.mesh.size(mesh_dim) for mesh_dim in fsdp.on)
    uneven = [
        _divided(subject, module, parameter)
        for _, module, parameter in subject.inventory.parameters()
        if parameter.shape and module.fqn not in subject.bound.experts
    ]
    even = sum(one.num_elements for one in uneven) / num_ranks
    by_rows: dict[int, list[_Divided]] = {}
    for one in uneven:
        if one.num_rows < num_ranks:
            by_rows.setdefault(one.num_rows, []).append(one)
    for num_rows, short in by_rows.items():
        held = sum(one.num_elements for one in short) // num_rows
        fair = sum(one.num_elements for one in short) // num_ranks
        if held - fair < _WORTH_SAYING * even:
            continue
        names = subject.named(one.name for one in short)
        idle = "1 rank holds" if num_ranks - num_rows == 1 else f"{num_ranks - num_rows} ranks hold"
        yield CODE.at(
            fsdp.span,
            f"{names} has {plural(num_rows, 'row')} (dimension 0) for {num_ranks} ranks",
            notes=(
                f"FSDP shards whole rows: {idle} none, and rank 0 holds {held:_} "
                f"elements instead of an even {fair:_}, with their gradients and optimizer state",
                f"gathers are padded to rank 0's share, and send {num_ranks / num_rows:.3g} times the bytes",
            ),
            help=_help(num_rows, num_ranks),
        )


def _divided(subject: Subject, module: Module, parameter: Parameter) -> _Divided:
    tp, rows = subject.plan.mesh.tp, parameter.shape[0]
    name = module.fqn if parameter.name == "weight" else f"{module.fqn}.{parameter.name}"
    assignment = subject.bound.styles.get(module.fqn)
    placement = assignment.placement(parameter.name) if assignment else Replicate()
    if isinstance(placement, Replicate):
        return _Divided(name, rows, parameter.num_elements)
    divides_rows = isinstance(placement, Shard) and placement.tensor_dim == 0
    return _Divided(name, -(-rows // tp) if divides_rows else rows, parameter.num_elements // tp)


def _help(num_rows: int, num_ranks: int) -> str:
    size = max(size for size in divisors(num_ranks) if size <= num_rows)
    if size == 1:
        return "use `dp_replicate` instead of `dp_shard`"
    return f"set `dp_shard` to {size}, and `dp_replicate` to the remaining factor"
