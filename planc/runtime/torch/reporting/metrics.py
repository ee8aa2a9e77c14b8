"""Metrics over all ranks, and their reports."""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from planc.figures.plan import tokens_per_step
from planc.graph.ops import Log, ReduceMetrics
from planc.graph.step_phases import PHASES
from planc.runtime.interpreter import Position
from planc.runtime.observer import StepMetrics
from planc.runtime.process import Launch
from planc.runtime.schedule import learning_rate_factor
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.reporting.by_source import source_metrics
from planc.runtime.torch.reporting.line import Line, write_line
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.bad_steps import guard_of
from planc.runtime.torch.training.preemption import sum_stop_requests
from planc.runtime.torch.training.step_read import read_step
from planc.vocab import SAMPLE_DIMS, MeshDim


def reduce_metrics(session: Session, op: ReduceMetrics, position: Position) -> None:
    """Sum the loss over all ranks: each rank divides by the global token count, so the sum is the mean.

    A guard has a verdict to add to what is read from the device; without one, it is read here.
    """
    session.note_compilation(f"step {position.step}")
    sum_stop_requests(session, op)
    if guard_of(session) is None:
        read_step(session, position)


def log(session: Session, op: Log, position: Position) -> None:
    """Write the step's line, or with a device's queue as soon as the most of any rank is known."""
    is_due = op.is_due(step=position.step, num_steps=session.graph.num_steps)
    if not is_due and not session.evaluations and not session.pending_evaluations:
        return
    seconds = time.perf_counter() - session.step_started
    spent = session.clock.read() if session.clock is not None else dict.fromkeys(PHASES, 0)
    memory = _memory_bytes(session.device)
    if session.rank_log is not None:
        own = {"step": position.step, "loss": session.mean_loss, "seconds": seconds}
        phase_seconds = {phase: ns / 1e9 for phase, ns in spent.items()}
        session.rank_log.write("step", **own, memory_bytes=memory[0], phase_seconds=phase_seconds)
    own_times, num_steps = _own_times(session)
    graphs = () if session.compiled is None else (session.compiled.num_graphs,)
    own_values = np.concatenate((np.array((*memory, *graphs, *spent.values()), dtype=np.int64), own_times))
    session.line = Line(
        metrics=_metrics(session, position, seconds=seconds),
        num_memory=len(memory),
        has_graphs=session.compiled is not None,
        phases=tuple(spent),
        num_steps=num_steps,
        most=_most_of_any_rank(session, own_values),
        load=_expert_load(session) if is_due else None,
    )
    if not session.has_queue or position.is_last_step:
        write_line(session)


def _metrics(session: Session, position: Position, *, seconds: float) -> StepMetrics:
    """The metrics that every rank knows by itself."""
    sample_ids = _sample_ids(session) if session.reports_sample_ids else ()
    peak = session.optimizer.defaults["lr"]
    tokens = tokens_per_step(session.graph).count
    work, is_cuda = session.work, session.device.type == "cuda"
    return StepMetrics(
        step=position.step,
        loss=session.mean_loss,
        grad_norm=session.grad_norm,
        learning_rate=peak * learning_rate_factor(session.schedule, step=position.step),
        tokens=tokens,
        labels=session.batch_tokens,
        tokens_per_second=tokens / seconds,
        tokens_per_second_per_device=tokens / session.graph.world_size / seconds,
        seconds=seconds,
        memory_bytes=0,
        memory_kind="allocated" if is_cuda else "process",
        tflops_per_second_per_device=work.tflops_per_second_per_device(seconds=seconds) if work else None,
        # The plan's device is an accelerator: its peak does not apply to a CPU.
        mfu=work.mfu(seconds=seconds) if work and is_cuda else None,
        epoch=session.loader.epoch,
        sources=source_metrics(session),
        sample_ids=sample_ids,
        evaluations=tuple(session.evaluations),
        is_skipped=session.guard.is_skipped or None,
    )


def _expert_load(session: Session) -> Arrival | None:
    load = session.expert_load
    if load is None:
        return None
    return load.summed(tp_size=session.graph.size(MeshDim.TP), has_queue=session.has_queue)


def _own_times(session: Session) -> tuple[npt.NDArray[np.int64], int]:
    """This rank's nanoseconds since the last log, in its own place, and their number of steps."""
    # Zeros in the others' places, so a maximum over all ranks gives each rank's own.
    own_times = np.zeros(session.launch.world_size, dtype=np.int64)
    if session.own_time is None:
        return own_times, 0
    own_times[session.launch.rank], num_steps = session.own_time.take()
    return own_times, num_steps


def _most_of_any_rank(session: Session, values: npt.NDArray[np.int64]) -> Arrival:
    own = torch.from_numpy(values)
    if session.launch.world_size == 1:
        return Arrival(own, has_queue=False)
    most = session.to_device(own)
    if session.has_queue or session.launch.world_size == 2:
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    else:
        _take_most(most, launch=session.launch)
    return Arrival(most, has_queue=session.has_queue)


def _take_most(values: Tensor, *, launch: Launch) -> None:
    """The most of any rank, in place.

    By way of rank 0: gloo's all-reduce sends even a small tensor around a ring, in pieces, and takes three
    times the CPU time on four ranks, but half on two.
    """
    found = [torch.empty_like(values) for _ in range(launch.world_size)] if launch.rank == 0 else None
    dist.gather(values, found, dst=0)
    if found is not None:
        torch.amax(torch.stack(found), dim=0, out=values)
    dist.broadcast(values, src=0)


def _memory_bytes(device: torch.device) -> tuple[int, ...]:
    """The peak memory of this rank: CUDA memory allocated and reserved, or the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    try:
        import resource
    except ModuleNotFoundError:  # Windows, where runs are only rehearsed and report nothing
        return (0,)

    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,)


def _sample_ids(session: Session) -> tuple[int, ...]:
    """The step's sample ids in the order of the global batch, gathered from every data-parallel rank."""
    local = session.to_device(torch.stack([torch.from_numpy(one.sample_ids) for one in session.batch]))
    gathered = local.unsqueeze(1)
    for mesh_dim in reversed(SAMPLE_DIMS):
        gathered = _gather(gathered, session, mesh_dim)
    return tuple(gathered.flatten().tolist())


def _gather(tensor: Tensor, session: Session, mesh_dim: MeshDim) -> Tensor:
    """[micro steps, ranks so far, micro batch] with the ranks of one more mesh dim."""
    group = session.submesh(mesh_dim).get_group()
    parts = [torch.empty_like(tensor) for _ in range(session.graph.size(mesh_dim))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim=1)
