"""Whether a run compares the collectives of its first step with its graph's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.cli.running.compiled import Compiled, predictions_of
from planc.runtime.collectives import SKIP_CHECK

if TYPE_CHECKING:
    from planc.runtime.torch.session import Session


def count_first_step(session: Session, compiled: Compiled, *, is_skipped: bool) -> None:
    """Compare the first step's collectives, or note why that can't be."""
    # Imported lazily, as all of torch is.
    from planc.runtime.torch.agreement.first_step import FirstStep

    rank, is_cuda = session.launch.rank, session.device.type == "cuda"
    predicted = None
    if not is_skipped:
        logs_ids = session.reports_sample_ids
        predicted = predictions_of(compiled, rank=rank, is_cuda=is_cuda, logs_sample_ids=logs_ids)
    session.first_step = FirstStep(session.graph, predicted)
    if predicted is not None:
        return
    reason = SKIP_CHECK if is_skipped else "a compiled plan has no inventory to predict them from"
    session.observer.noted(f"the collectives of the first step are not checked: {reason}")
