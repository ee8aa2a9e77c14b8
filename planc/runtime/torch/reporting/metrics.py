"""Metrics over all ranks, and their reports."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from planc.figures.plan import tokens_per_step
from planc.graph.ops import BuildOptimizer, Log
from planc.graph.sources import mixture_labels
from planc.runtime.interpreter import Position
from planc.runtime.observer import SourceMetrics, Step, StepMetrics
from planc.runtime.process import Launch
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.reporting.instruments import Instruments, Line
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Data, Evaluations, History, Schedule, Verdict
from planc.runtime.torch.training.balance import Balance
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.expert_load import ExpertLoad
from planc.runtime.torch.training.step_loss import NAMES_OF_MEANS
from planc.vocab import SAMPLE_DIMS, MeshDim


def log(
    run: Run,
    op: Log,
    at: Position,
    instruments: Instruments,
    mesh: Mesh,
    schedule: Schedule,
    data: Data,
    batch: Batch,
    verdict: Verdict,
    evaluations: Evaluations,
    history: History,
    compiled: CompiledGraphs | None,
    experts: ExpertLoad | None,
    balance: Balance | None,
    readers: Readers | None,
) -> None:
    """Write the step's line, or with a device's queue as soon as the most of any rank is known."""
    is_due = op.is_due(step=at.step, num_steps=run.graph.num_steps)
    if not is_due and not evaluations.done and not evaluations.postponed and history.stop is None:
        return
    # The time of a step does not include its evaluations.
    seconds = time.perf_counter() - batch.began - evaluations.seconds
    spent = instruments.clock.read()
    memory = _memory_bytes(run.device)
    if instruments.rank_log is not None:
        own = {"step": at.step, "loss": verdict.loss, "seconds": seconds}
        phase_seconds = {phase: ns / 1e9 for phase, ns in spent.items()}
        peaks = dict(zip(("memory_bytes", "memory_reserved_bytes"), memory, strict=False))
        instruments.rank_log.write("step", **own, **peaks, phase_seconds=phase_seconds)
    own_times, num_steps = _own_times(run, instruments)
    graphs = () if compiled is None else (compiled.num_graphs,)
    own_values = np.concatenate((np.array((*memory, *graphs, *spent.values()), dtype=np.int64), own_times))
    ids = _sample_ids(run, mesh, batch) if run.reports_sample_ids else ()
    load = added = None
    num_same = 1 if run.graph.routes_shards else run.graph.size(MeshDim.TP)
    if is_due and experts is not None:
        load = experts.summed(num_same=num_same, has_queue=run.has_queue)
    if is_due and balance is not None:
        added = balance.summed(num_same=num_same, has_queue=run.has_queue)
    instruments.line = Line(
        metrics=replace(
            _metrics(run, at, schedule, data, verdict, evaluations, seconds=seconds, sample_ids=ids),
            early_stop=evaluations.early_stop or (history.stop and history.stop.reason) or None,
            custom=_custom(verdict, readers, instruments.readers),
        ),
        num_memory=len(memory),
        has_graphs=compiled is not None,
        phases=tuple(spent),
        num_steps=num_steps,
        most=_most_of_any_rank(run, own_values),
        load=load,
        experts=experts,
        added=added,
        balance=balance,
    )
    if not run.has_queue or at.is_last_step:
        instruments.write_line()


def _custom(verdict: Verdict, *readers: Readers | None) -> dict[str, float]:
    """The means over pairs or classes, and the metrics of the plan's own code and of the program."""
    own = {name: value for of in readers if of is not None for name, value in of.values.items()}
    names = NAMES_OF_MEANS.get(len(verdict.means), ())
    return dict(zip(names, verdict.means, strict=True)) | own


def figures_of(run: Run, verdict: Verdict, schedule: Schedule, *, step: int) -> Step:
    """The figures of the step that is done."""
    return Step(
        step=step,
        loss=verdict.loss,
        grad_norm=verdict.gradient_norm,
        learning_rate=learning_rate(run, schedule, step=step),
        labels=verdict.num_labels,
        is_skipped=verdict.is_skipped,
    )


def learning_rate(run: Run, schedule: Schedule, *, step: int) -> float:
    """The optimizer's peak learning rate, as the schedule has it at a step."""
    peak = next(op.lr for op in run.graph.setup if isinstance(op, BuildOptimizer))
    return peak * schedule.factor(step)


def _metrics(
    run: Run,
    at: Position,
    schedule: Schedule,
    data: Data,
    verdict: Verdict,
    evaluations: Evaluations,
    *,
    seconds: float,
    sample_ids: tuple[int, ...],
) -> StepMetrics:
    """The metrics that every rank knows by itself."""
    tokens = tokens_per_step(run.graph).count
    work, is_cuda = run.work, run.device.type == "cuda"
    return StepMetrics(
        step=at.step,
        loss=verdict.loss,
        grad_norm=verdict.gradient_norm,
        learning_rate=learning_rate(run, schedule, step=at.step),
        tokens=tokens,
        labels=verdict.num_labels,
        tokens_per_second=tokens / seconds,
        tokens_per_second_per_device=tokens / run.graph.world_size / seconds,
        seconds=seconds,
        memory_bytes=0,
        memory_kind="allocated" if is_cuda else "process",
        tflops_per_second_per_device=work.tflops_per_second_per_device(seconds=seconds) if work else None,
        # The plan's device is an accelerator: its peak does not apply to a CPU.
        mfu=work.mfu(seconds=seconds) if work and is_cuda else None,
        epoch=data.loader.epoch,
        sources=_source_metrics(run, data, verdict),
        sample_ids=sample_ids,
        evaluations=evaluations.done,
        is_skipped=verdict.is_skipped or None,
    )


def _source_metrics(run: Run, data: Data, verdict: Verdict) -> tuple[SourceMetrics, ...]:
    """Each source's part of the step that was read."""
    loader, values = data.loader, verdict.by_source
    if not values:
        return ()
    length = loader.source.dataset.sequence_length
    given = zip(loader.source.order.sizes, loader.consumed(steps_before=1), loader.consumed(), strict=True)
    pairs = zip(values[::2], values[1::2], strict=True)
    return tuple(
        SourceMetrics(
            label,
            tokens=(after - before) * length,
            labels=int(labels),
            loss=loss / labels if labels else None,
            epoch=after / size,
        )
        for label, (loss, labels), (size, before, after) in zip(
            mixture_labels(run.graph), pairs, given, strict=True
        )
    )


def _own_times(run: Run, instruments: Instruments) -> tuple[npt.NDArray[np.int64], int]:
    """This rank's nanoseconds since the last log, in its own place, and their number of steps."""
    # Zeros in the others' places, so a maximum over all ranks gives each rank's own.
    own_times = np.zeros(run.launch.world_size, dtype=np.int64)
    if instruments.own_time is None:
        return own_times, 0
    own_times[run.launch.rank], num_steps = instruments.own_time.take()
    return own_times, num_steps


def _most_of_any_rank(run: Run, values: npt.NDArray[np.int64]) -> Arrival:
    own = torch.from_numpy(values)
    if run.launch.world_size == 1:
        return Arrival(own, has_queue=False)
    most = run.to_device(own)
    if run.has_queue or run.launch.world_size == 2:
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    else:
        _take_most(most, launch=run.launch)
    return Arrival(most, has_queue=run.has_queue)


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


def _sample_ids(run: Run, mesh: Mesh, batch: Batch) -> tuple[int, ...]:
    """The step's sample ids in the order of the global batch, gathered from every data-parallel rank."""
    local = run.to_device(torch.stack([torch.from_numpy(one.sample_ids) for one in batch.micro_batches]))
    gathered = local.unsqueeze(1)
    for mesh_dim in reversed(SAMPLE_DIMS):
        gathered = _gather(gathered, run, mesh, mesh_dim)
    return tuple(gathered.flatten().tolist())


def _gather(tensor: Tensor, run: Run, mesh: Mesh, mesh_dim: MeshDim) -> Tensor:
    """[micro steps, ranks so far, micro batch] with the ranks of one more mesh dim."""
    group = mesh.group(mesh_dim)
    parts = [torch.empty_like(tensor) for _ in range(run.graph.size(mesh_dim))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim=1)
