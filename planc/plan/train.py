"""The number of steps, their size, and how their loss is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from planc.plan.scalars import STEPS, Int, Quantity
from planc.plan.shares import Weight
from planc.plan.types import Optional, OrAuto, key
from planc.record import record

if TYPE_CHECKING:
    from fractions import Fraction


@record
class TrainSpec:
    """The number of steps and their size."""

    steps: int | None = key(
        Int(1), unless="epochs", doc="optimizer steps, unless `epochs` gives them", example="1000"
    )
    epochs: Fraction | None = key(
        Optional(Weight()),
        default=None,
        doc="passes over the sequences of all sources, in place of `steps`; the last step may pass their end",
    )
    tokens_per_step: int | None = key(
        Optional(Int(1)), default=None, doc="tokens per optimizer step, over all ranks", example="8192"
    )
    log_every: int = key(Quantity(STEPS, low=1), default=1, doc="steps between log lines")
    loss_chunks: int | Literal["auto"] = key(
        OrAuto(Int(1)),
        default=1,
        doc="parts of a micro-batch's tokens whose logits exist at a time; "
        "auto is one for each `hidden_size` of a rank's vocabulary, of at least 1_024 tokens",
    )
