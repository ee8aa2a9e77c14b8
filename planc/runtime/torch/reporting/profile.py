"""Traces of a few steps, for chrome://tracing and Perfetto, and snapshots of CUDA memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from planc.graph.graph import Graph
from planc.graph.ops import StartProfile, StopProfile
from planc.runtime.errors import RunError
from planc.runtime.files.plain_files import remove
from planc.runtime.files.run_files import PROFILE
from planc.runtime.interpreter import Position
from planc.runtime.torch.private import dump_memory_snapshot, record_memory_history
from planc.runtime.torch.reporting.instruments import Instruments, Trace
from planc.runtime.torch.run import Run

MAX_ALLOCATIONS = 1_000_000
"""The most entries of a memory snapshot; older ones are dropped."""


def require_traceable(graph: Graph, device: torch.device) -> None:
    """RunError for a memory snapshot on CPU, whose memory PyTorch does not record."""
    for op in graph.step:
        if isinstance(op, StartProfile) and op.memory and device.type != "cuda":
            raise RunError(
                "profile.memory records CUDA memory, but this run is on CPUs",
                help="set profile.memory = false",
                span=op.span,
            )


def start_profile(run: Run, op: StartProfile, at: Position, instruments: Instruments) -> None:
    """Start at the first step that is due; a resumed run may begin in the middle."""
    if instruments.trace is not None or not op.first_step <= at.step <= op.last_step:
        return
    is_cuda = run.device.type == "cuda"
    if op.memory:
        record_memory_history(max_entries=MAX_ALLOCATIONS)
    profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])])
    profiler.start()
    instruments.trace = Trace(profiler, at.step, op.memory)


def stop_profile(run: Run, op: StopProfile, at: Position, instruments: Instruments) -> None:
    if at.step in (op.last_step, run.graph.num_steps):
        stop_trace(run, instruments)


def stop_trace(run: Run, instruments: Instruments) -> None:
    """Write `profile/step-3-rank-0.json.gz`, named after the first traced step, if a trace is under way."""
    trace, instruments.trace = instruments.trace, None
    if trace is None:
        return
    trace.profiler.stop()
    folder: Path = run.paths.run / PROFILE
    write = partial(_write, trace, folder, rank=run.launch.rank)
    # The profiler reports a file that it can't write as a RuntimeError.
    if run.effort.attempt(f"write a trace into {folder}", write, errors=(OSError, RuntimeError)):
        run.observer.noted(f"traced from step {trace.first_step} on: {folder}")
    if trace.has_memory:
        record_memory_history(enabled=None)


def _write(trace: Trace, folder: Path, *, rank: int) -> bool:
    name = f"step-{trace.first_step}-rank-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    trace.profiler.export_chrome_trace(str(_free(folder / f"{name}.json.gz")))
    if trace.has_memory:
        dump_memory_snapshot(str(_free(folder / f"{name}-memory.pickle")))
    return True


def _free(path: Path) -> Path:
    """The path, with nothing in place that torch would write through."""
    remove(path)
    return path
