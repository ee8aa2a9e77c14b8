"""The one read of a step: all that the host decides by, in one copy from the device."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

from planc.graph.ops import ClipGradients, ReduceMetrics
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.gradients import measure_again, norm_of
from planc.runtime.torch.reporting.line import write_line
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.bad_steps import require_finite
from planc.runtime.torch.training.preemption import take_stop_requests


def read_step(session: Session, position: Position, *, verdict: Tensor | None = None) -> int:
    """Wait for the device, once in a step, and put its numbers into the session; return the verdict.

    RunError on every rank if the loss or the gradient norm is not finite and no guard decides about it.
    """
    on_device = (session.step_loss, session.num_stop_requests, session.num_labels, session.squared_norm)
    numbers = torch.stack([one.double() for one in (*on_device, verdict) if one is not None])
    of_sources = session.source_sums
    if of_sources is not None:
        numbers = torch.cat((numbers, of_sources.sums))
    own_time = session.own_time
    with own_time.waiting() if own_time is not None else contextlib.nullcontext():
        values = numbers.tolist()
    if of_sources is not None:
        of_sources.values = values[-len(of_sources.sums) :]
    loss, num_stop_requests, num_labels, squared, worst, *_ = (*values, 0)
    if session.clock is not None:
        session.clock.settle()
    write_line(session)
    session.mean_loss, session.batch_tokens = loss, int(num_labels)
    # Squares overflow float32 where values do not.
    session.grad_norm = norm_of(squared) if math.isfinite(squared) else measure_again(session)
    _skip_without_labels(session, position)
    spans = {type(op): op.span for op in session.graph.step}
    found = (("gradient norm", session.grad_norm, ClipGradients), ("loss", loss, ReduceMetrics))
    for name, value, kind in found:
        require_finite(session, position, name=name, value=value, span=spans[kind])
    take_stop_requests(session, num_stop_requests)
    return int(worst) if verdict is not None else 0


def _skip_without_labels(session: Session, position: Position) -> None:
    """A step without labels has no gradient. Neither decay nor momentum may move a weight for it."""
    session.guard.is_skipped = session.batch_tokens == 0
    if session.batch_tokens == 0 and not session.is_warned_of_no_labels:
        session.is_warned_of_no_labels = True
        session.observer.noted(
            f"step {position.step} has no labels and changes no weight; metrics.jsonl marks every such step"
        )
