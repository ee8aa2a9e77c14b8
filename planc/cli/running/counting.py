"""Whether a run compares the collectives of its first step with its graph's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.cli.running.compiled import Compiled, predictions_of
from planc.runtime.collectives import SKIP_CHECK

if TYPE_CHECKING:
    from planc.runtime.torch.backend import TorchBackend


def count_first_step(backend: TorchBackend, compiled: Compiled, *, is_skipped: bool) -> None:
    """Compare the first step's collectives, or note why that can't be."""
    # Imported lazily, as all of torch is.
    from planc.runtime.torch.reporting.first_step import FirstStep

    run = backend.run
    rank, is_cuda = run.launch.rank, run.device.type == "cuda"
    predicted = None
    if not is_skipped:
        logs_ids = run.reports_sample_ids
        predicted = predictions_of(compiled, rank=rank, is_cuda=is_cuda, logs_sample_ids=logs_ids)
    backend.instruments.first_step = FirstStep(run.graph, predicted)
    if predicted is not None:
        return
    reason = SKIP_CHECK if is_skipped else "a compiled plan has no inventory to predict them from"
    run.observer.noted(f"the collectives of the first step are not checked: {reason}")
