"""Stop a run early: ranks agree where, after some were asked to, and skip what would take long."""

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


def sum_stop_requests(session: Session, op: ReduceMetrics) -> None:
    """Sum the step's loss, and with it how many ranks were asked to stop: no extra collective, 8 more bytes.

    With them, the loss and the labels of each source of a mixture. Over the mesh dims that share one loss,
    only the requests are summed.
    """
    assert session.step_loss is not None
    own_request = session.step_loss.new_full((), float(bool(session.notice.signal_name)))
    own = torch.stack((session.step_loss, own_request))
    of_sources = session.source_sums
    if of_sources is not None:
        own = torch.cat((own, of_sources.sums.flatten()))
    summed = session.sum_over(own, op.over)
    session.step_loss = summed[0]
    session.num_stop_requests = session.sum_over(summed[1], op.agree_over)
    if of_sources is not None:
        of_sources.sums = summed[2:]


def take_stop_requests(session: Session, number: float) -> None:
    """Take the sum of `sum_stop_requests`, once it is read."""
    session.is_stopping = session.is_stopping or number > 0
    # A first step compiles, and may take minutes that no other takes.
    if session.notice.has_trained:
        seconds = time.perf_counter() - session.step_started
        if seconds <= LONG_STEP_SECONDS:
            session.stretches.add("a step", seconds)
        else:
            session.stretches.add("a micro-batch", seconds / len(session.batch))


def stops_here(session: Session, *, in_step: bool = False) -> bool:
    """Whether the run stops at this point: the same on every rank. Every rank must call it.

    `in_step` is for a point between two micro-batches of a step, which is abandoned only if steps are long.
    """
    if not session.is_stopping:
        session.is_stopping = session.stop_points.reached(in_step=in_step)
    return session.is_stopping


def ends_after(session: Session, *, step: int) -> bool:
    """Whether any rank was asked to stop by now, when `step` is done; the same on every rank."""
    if session.num_stop_requests is None:
        # Before the first step, and only then, no metrics are summed.
        session.num_stop_requests = torch.tensor(
            float(bool(session.notice.signal_name)), device=session.device
        )
        if session.launch.world_size > 1:
            dist.all_reduce(session.num_stop_requests)
        take_stop_requests(session, session.num_stop_requests.item())
    session.notice.step = step
    session.stop_points.step_began()
    session.notice.is_agreed = stops_here(session)
    return session.notice.is_agreed


def report_undone(session: Session, what: str) -> None:
    """Report that the run ends without `what`; the same command does it later."""
    session.notice.is_agreed = True
    session.notice.undone.append(what)
    session.observer.noted(f"stop requested: {what} is left undone")


def abandon_step(session: Session, *, step: int) -> None:
    """Drop the micro-batches that a step has done: no weight has changed, and its data comes again."""
    session.loader.load_state(session.loader.samples_consumed - session.loader.source.global_batch)
    session.optimizer.zero_grad(set_to_none=True)
    reshard(session)
    report_undone(session, f"step {step}")


def reshard(session: Session) -> None:
    """Reshard all modules for a checkpoint: without a full backward, some stay gathered."""
    for module in session.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def stretch(session: Session, name: str) -> Iterator[None]:
    """Measure a stretch that the run can't interrupt, for `warn_of_grace`."""
    began = time.perf_counter()
    yield
    session.stretches.add(name, time.perf_counter() - began)


def warn_of_grace(session: Session, *, seconds: float) -> None:
    """Warn once if stopping takes longer than torchrun waits: a save, and the stretch before it."""
    stretches = session.stretches
    stretches.save_seconds = max(stretches.save_seconds, seconds)
    grace = grace_seconds(os.environ, agent_command(os.getppid()))
    if stretches.total_seconds <= grace or session.is_warned_of_grace:
        return
    session.is_warned_of_grace = True
    name, before = stretches.between
    after = f" after {name} of {before:.0f} s" if before >= 1 else ""
    session.observer.noted(
        f"a checkpoint takes {seconds:.0f} s{after}, but torchrun kills processes {grace} s after a signal: "
        f"start it with --shutdown-timeout {2 * round(stretches.total_seconds)}, or a stopped run loses its "
        "progress since the last save"
    )
