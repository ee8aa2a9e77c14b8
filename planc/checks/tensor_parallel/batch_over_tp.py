"""A batch that tensor parallelism shards unevenly."""

from __future__ import annotations

from planc.checks.support.legal_values import choices, multiples_around
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.styles.edges import BATCH, normal
from planc.tables import plural
from planc.vocab import MeshDim

CODE = Code("P421", "batch-over-tp", "the micro batch is not divisible by tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `data.micro_batch` if a boundary shards activations unevenly along the batch."""
    tp, micro_batch = subject.plan.mesh.tp, subject.plan.data.micro_batch
    uses = ((assignment, assignment.use) for assignment in subject.bound.styles.values())
    dividing = next(
        (one for one, use in uses if BATCH in map(normal, (use.input, use.computes_on, use.output))),
        None,
    )
    if dividing is None or micro_batch % tp == 0:
        return
    near = multiples_around(micro_batch, of=tp)
    yield CODE.at(
        subject.plan.span("data.micro_batch"),
        f"tp = {tp} does not divide {plural(micro_batch, 'sequence')}",
        secondary=(Label(dividing.span, "the batch is sharded here: Shard(0)"),),
        notes=("ranks with unequal shards would abort in the first all-gather",),
        help=f"set `micro_batch` to {choices(near, near=micro_batch)}, "
        "or shard the sequence instead: `Shard(1)`",
    )
