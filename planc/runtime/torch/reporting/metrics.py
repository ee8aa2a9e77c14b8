"""Metrics over all ranks, and their reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from planc.figures.plan import tokens_per_step
from planc.graph.ops import Log, ReduceMetrics
from planc.runtime.interpreter import Position
from planc.runtime.observer import StepMetrics
from planc.runtime.schedule import learning_rate_factor
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.guarding import require_finite
from planc.runtime.torch.training.preemption import read_stop_requests, sum_stop_requests
from planc.vocab import SAMPLE_DIMS, MeshDim


def reduce_metrics(session: Session, op: ReduceMetrics, position: Position) -> None:
    """Sum the loss over all ranks: each rank divides by the global token count, so the sum is the mean."""
    sum_stop_requests(session, op)
    assert session.step_loss is not None
    require_finite(session, position, name="loss", value=session.step_loss.item())
    read_stop_requests(session)


def log(session: Session, op: Log, position: Position) -> None:
    is_due = position.step % op.every_steps == 0 or position.step == session.graph.num_steps
    if not is_due and not session.evaluations and not session.pending_evaluations:
        return
    assert session.step_loss is not None
    loss = session.step_loss.item()
    seconds = time.perf_counter() - session.step_started
    spent = session.clock.read() if session.clock is not None else {}
    memory = _memory_bytes(session.device)
    if session.rank_log is not None:
        own = {"step": position.step, "loss": loss, "seconds": seconds, "memory_bytes": memory[0]}
        session.rank_log.write("step", **own, phase_seconds={phase: ns / 1e9 for phase, ns in spent.items()})
    own_times, num_steps = _own_times(session)
    most = _most_of_any_rank(session, (*memory, *spent.values(), *own_times))
    sample_ids = _sample_ids(session) if session.reports_sample_ids else ()
    peak = session.optimizer.defaults["lr"]
    tokens = tokens_per_step(session.graph).count
    work, is_cuda = session.work, session.device.type == "cuda"
    metrics = StepMetrics(
        step=position.step,
        loss=loss,
        grad_norm=session.grad_norm,
        learning_rate=peak * learning_rate_factor(session.schedule, step=position.step),
        tokens=tokens,
        labels=session.batch_tokens,
        tokens_per_second=tokens / seconds,
        tokens_per_second_per_device=tokens / session.graph.world_size / seconds,
        seconds=seconds,
        memory_bytes=most[0],
        memory_kind="allocated" if is_cuda else "process",
        memory_reserved_bytes=most[1] if is_cuda else None,
        tflops_per_second_per_device=work.tflops_per_second_per_device(seconds=seconds) if work else None,
        # The plan's device is an accelerator: its peak does not apply to a CPU.
        mfu=work.mfu(seconds=seconds) if work and is_cuda else None,
        phase_seconds={phase: ns / 1e9 for phase, ns in zip(spent, most[len(memory) :], strict=False)},
        sample_ids=sample_ids,
        evaluations=tuple(session.evaluations),
        is_skipped=session.guard.is_skipped or None,
        stragglers=_note_stragglers(session, position, most[len(memory) + len(spent) :], num_steps=num_steps),
    )
    session.observer.stepped(metrics)


def _own_times(session: Session) -> tuple[list[int], int]:
    """This rank's nanoseconds since the last log, in its own place, and their number of steps."""
    if session.own_time is None:
        return [], 0
    own_ns, num_steps = session.own_time.take()
    # Zeros in the others' places, so a maximum over all ranks gives each rank's own.
    return [own_ns * (rank == session.launch.rank) for rank in range(session.launch.world_size)], num_steps


def _note_stragglers(
    session: Session, position: Position, own_ns: Sequence[int], *, num_steps: int
) -> tuple[int, ...]:
    """The ranks that slow down the others, the same on every rank; new ones are reported."""
    if session.own_time is None:
        return ()
    stragglers = session.own_time.stragglers
    for found in stragglers.add([ns / 1e9 for ns in own_ns], num_steps=num_steps):
        session.observer.noted(f"warning: step {position.step}: {found}")
    return stragglers.named


def _most_of_any_rank(session: Session, values: Sequence[int]) -> list[int]:
    if session.launch.world_size == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.int64, device=session.device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    maxima: list[int] = tensor.tolist()
    return maxima


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
    local = torch.stack([torch.from_numpy(batch.sample_ids) for batch in session.batch]).to(session.device)
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
