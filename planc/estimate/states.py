"""Parameters, gradients and optimizer state: exact, from the local shapes."""

from __future__ import annotations

from math import prod

from planc.estimate.model import Amount
from planc.estimate.rank_work import RankWork

_STEP_BYTES = 4


def num_local_parameters(work: RankWork) -> int:
    """Elements of rank 0's shards."""
    return sum(prod(layout.local_shape) for layout in work.layouts.values())


def states(work: RankWork) -> tuple[Amount, Amount, Amount]:
    """What stays from step to step, and the gradients that one step leaves before they are freed."""
    local = num_local_parameters(work)
    stored = local * work.model_dtype.size_bytes
    counters = _STEP_BYTES * len(work.layouts)
    return (
        Amount("parameters", stored, True, f"{local:_} elements x {work.model_dtype}", "local shapes"),
        Amount(
            "optimizer",
            2 * stored + counters,
            True,
            f"2 x parameters + {_STEP_BYTES} x {len(work.layouts)} step counters",
            "torch.optim.AdamW: exp_avg, exp_avg_sq, step",
        ),
        Amount("gradients", stored, True, f"{local:_} elements x {work.model_dtype}", "local shapes"),
    )
