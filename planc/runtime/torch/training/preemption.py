"""Ranks agree where a run ends that some of them were told to end, and leave what would take long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from planc.graph.ops import ReduceMetrics
from planc.runtime.stopping.grace import agent_command, grace_seconds
from planc.runtime.stopping.stop_points import LONG_STEP_SECONDS
from planc.runtime.torch.session import Session


def sum_with_notices(session: Session, op: ReduceMetrics) -> None:
    """Sums the step's loss, and with it how many ranks were told to end: no collective more, 8 bytes more.

    Over the mesh dims that share one loss, the notices alone are summed.
    """
    assert session.step_loss is not None
    told = session.step_loss.new_full((), float(bool(session.notice.heard)))
    both = session.sum_over(torch.stack((session.step_loss, told)), op.over)
    session.step_loss = both[0]
    session.told = session.sum_over(both[1], op.agree_over)


def heed_notices(session: Session) -> None:
    """Reads what `sum_with_notices` summed, once the device is waited for anyway."""
    assert session.told is not None
    session.is_leaving = session.is_leaving or session.told.item() > 0
    # A first step compiles, and may take minutes that no other takes.
    if session.notice.has_trained:
        seconds = time.perf_counter() - session.step_started
        if seconds <= LONG_STEP_SECONDS:
            session.stretches.add("a step", seconds)
        else:
            session.stretches.add("a micro-batch", seconds / len(session.batch))


def leaves_here(session: Session, *, in_step: bool = False) -> bool:
    """Whether the run ends at this place: the same on every rank. All of them must ask.

    `in_step` is for a place between two micro-batches of a step, which is left only if steps are long.
    """
    if not session.is_leaving:
        session.is_leaving = session.stop_points.reached(in_step=in_step)
    return session.is_leaving


def is_told_to_end(session: Session, *, step: int) -> bool:
    """Whether any rank was told to end before now, when `step` is done; the same on every rank."""
    if session.told is None:
        # Before the first step, and only then, no metrics are summed.
        session.told = torch.tensor(float(bool(session.notice.heard)), device=session.device)
        if session.launch.world_size > 1:
            dist.all_reduce(session.told)
        heed_notices(session)
    session.notice.step = step
    session.stop_points.step_began()
    session.notice.is_agreed = leaves_here(session)
    return session.notice.is_agreed


def leave_undone(session: Session, what: str) -> None:
    """The run ends without `what`; the same command does it."""
    session.notice.is_agreed = True
    session.notice.left.append(what)
    session.observer.noted(f"told to end: {what} is left")


def leave_step(session: Session, *, step: int) -> None:
    """Forgets the micro-batches that a step has done: no weight has changed, and its data comes again."""
    session.loader.load_state(session.loader.samples_consumed - session.loader.source.global_batch)
    session.optimizer.zero_grad(set_to_none=True)
    reshard(session)
    leave_undone(session, f"step {step}")


def reshard(session: Session) -> None:
    """A checkpoint wants shards, and without a whole backward nothing reshards what stays gathered."""
    for module in session.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def stretch(session: Session, name: str) -> Iterator[None]:
    """Measures what the run cannot leave, for `warn_of_grace`."""
    began = time.perf_counter()
    yield
    session.stretches.add(name, time.perf_counter() - began)


def warn_of_grace(session: Session, *, seconds: float) -> None:
    """Says, once, that to end takes longer than torchrun waits: a save after what comes before it."""
    stretches = session.stretches
    stretches.save_seconds = max(stretches.save_seconds, seconds)
    grace = grace_seconds(os.environ, agent_command(os.getppid()))
    if stretches.total_seconds <= grace or session.is_warned_of_grace:
        return
    session.is_warned_of_grace = True
    name, before = stretches.between
    after = f" after {name} of {before:.0f} s" if before >= 1 else ""
    session.observer.noted(
        f"a checkpoint takes {seconds:.0f} s{after}, and torchrun kills what has not ended "
        f"{grace} s after a signal: start it with --shutdown-timeout {2 * round(stretches.total_seconds)}, "
        "or a run that is told to end loses what it did since its last save"
    )
