"""The schedules of a pipeline, and the stage that a rule gives."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.keys import key, keyed
from planc.plan.scalars import Int
from planc.record import record


@record
class GPipe:
    """All forwards of a step, then all backwards: every micro-batch is in flight at once."""


@record
class OneFOneB:
    """A backward as soon as there is one, so a stage has at most as many micro-batches in flight as stages
    follow it."""


@keyed
class Interleaved:
    """Several stages a rank, in turns: less idle time, more messages."""

    stages_per_rank: int = key(Int(2), unsaid=2, doc="stages of each rank")


@record
class ZeroBubble:
    """`one_f_one_b` in which ranks that wait compute the gradients of weights: the ZB-H1 schedule. Every
    stage has as many micro-batches in flight as the first."""


@keyed
class StageOf:
    """The module belongs to this stage; stages count from 0."""

    index: int = key(Int(0), doc="the stage", positional=True)


PipelineSchedule = GPipe | OneFOneB | Interleaved | ZeroBubble

SCHEDULES: Mapping[str, type[PipelineSchedule]] = {
    "gpipe": GPipe,
    "one_f_one_b": OneFOneB,
    "interleaved": Interleaved,
    "zero_bubble": ZeroBubble,
}
