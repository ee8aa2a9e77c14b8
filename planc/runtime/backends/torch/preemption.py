"""Ranks agree after which step a run ends that some of them were told to end."""

from __future__ import annotations

import torch
import torch.distributed as dist

from planc.graph.ops import ReduceMetrics
from planc.runtime.backends.torch.session import Session

TORCHRUN_GRACE_SECONDS = 30
"""What torchrun waits after it has passed a signal on, unless it is told otherwise."""


def sum_with_notices(session: Session, op: ReduceMetrics) -> None:
    """Sums the step's loss, and with it how many ranks were told to end: no collective more, 8 bytes more.

    Over the mesh dims that share one loss, the notices alone are summed.
    """
    assert session.step_loss is not None
    told = session.step_loss.new_full((), float(bool(session.notice.heard)))
    both = session.sum_over(torch.stack((session.step_loss, told)), op.over)
    session.step_loss = both[0]
    session.told = session.sum_over(both[1], op.agree_over)


def is_told_to_end(session: Session, *, step: int) -> bool:
    """Whether any rank was told to end before the step's metrics were summed; the same on every rank."""
    if session.told is None:
        # Before the first step, and only then, no metrics are summed.
        session.told = torch.tensor(float(bool(session.notice.heard)), device=session.device)
        if session.launch.world_size > 1:
            dist.all_reduce(session.told)
    session.notice.step = step
    session.notice.is_agreed = session.told.item() > 0
    return session.notice.is_agreed


def warn_of_grace(session: Session, *, seconds: float) -> None:
    """Says, once, that a save takes longer than torchrun waits for it."""
    if seconds > TORCHRUN_GRACE_SECONDS and not session.is_warned_of_grace:
        session.is_warned_of_grace = True
        session.observer.noted(
            f"a checkpoint takes {seconds:.0f} s, and torchrun kills what has not ended "
            f"{TORCHRUN_GRACE_SECONDS} s after a signal: start it with --shutdown-timeout "
            f"{2 * round(seconds)}, or a run that is told to end loses what it did since its last save"
        )
