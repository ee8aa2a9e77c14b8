"""A run's display on rank 0: lines before and after, and progress, redrawn or plain."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console

from planc.cli.running.live import LiveView, clock, source_lines, step_parts
from planc.figures import plan as of_plan
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import AttachAttention, ResumeCheckpoint, SaveCheckpoint
from planc.runtime.observer import Evaluation, SaveTimes, StepMetrics
from planc.runtime.process import Launch
from planc.runtime.run_directory.directory import RunDirectory
from planc.show.mesh import mesh_rows, range_text
from planc.tables import plural, render_table

_MAX_RANK_ROWS = 8
"""`planc show --mesh` prints more."""
_LABEL_WIDTH = 13


def banner(graph: Graph, launch: Launch, *, device: str, run_folder: Path, overrides: Sequence[str]) -> str:
    """The lines before a run: mesh, layout, run directory, and the source of each override."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    ranks = of_plan.world_size(graph).text
    lines = [
        f"planc run {graph.name}  plan_hash {plan_hash(graph)[:12]}",
        f"  mesh       {mesh_text(graph)}  ({ranks}, {device}, {backend})",
        *_ranks(graph, launch),
        *_layout(graph),
        f"  run dir    {run_folder}",
        *(f"  override   {text}" for text in overrides),
    ]
    return "\n".join(lines)


def closing(directory: RunDirectory, *, checkpoint: Path | None, last_step: int, num_steps: int) -> str:
    """The lines after a run: the loss of its first and last step, and where its files are."""
    if last_step > num_steps:
        lines = [f"nothing to do: step {last_step} is saved, and the plan ends after step {num_steps}"]
    else:
        lines = ["done" if last_step == num_steps else f"stopped after step {last_step} of {num_steps}"]
    losses = directory.losses()
    if losses:
        (first, first_loss), (last, last_loss) = losses[0], losses[-1]
        lines.append(f"  loss       {first_loss:.4f} (step {first}) -> {last_loss:.4f} (step {last})")
    lines.append(f"  metrics    {directory.path / 'metrics.jsonl'}")
    if checkpoint is not None:
        lines.append(f"  checkpoint {checkpoint}")
    return "\n".join(lines)


def preempted(graph: Graph, *, last_step: int, signal_name: str) -> str:
    """Why a run ends early, and how to resume. `signal_name` is empty if only other ranks got a signal."""
    resumes = any(isinstance(op, ResumeCheckpoint) for op in graph.setup)
    if not any(isinstance(op, SaveCheckpoint) for op in graph.save):
        outcome = "nothing is saved: the plan has no `checkpoint` block"
    elif last_step == 0:
        outcome = "no step was trained"
    elif resumes:
        outcome = "the same command resumes"
    else:
        outcome = "set `checkpoint.resume = latest` to resume"
    return f"stopped by {signal_name or 'a signal on another rank'}; {outcome}"


TORCHRUN_TRACEBACK = "torchrun prints a traceback about the signal; the run itself ended without an error"
"""What a run under torchrun says last when a signal ended it."""


def mesh_text(graph: Graph) -> str:
    """`dp_shard=2 tp=2`; dims of one rank are left out."""
    return " ".join(f"{mesh_dim}={size}" for mesh_dim, size in graph.mesh if size > 1) or "of one rank"


def _ranks(graph: Graph, launch: Launch) -> list[str]:
    """Where ranks meet, and the mesh coordinates of each."""
    if graph.world_size == 1:
        return []
    here = f", {launch.local_world_size} on this machine" if launch.local_world_size else ""
    lines = [f"  rendezvous {launch.address}:{launch.port}{here}"]
    rows = mesh_rows([size for _, size in graph.mesh])
    if len(rows) > _MAX_RANK_ROWS:
        return lines
    sharded = [index for index, (_, size) in enumerate(graph.mesh) if size > 1]
    header = ("rank", *(str(graph.mesh[index][0]) for index in sharded))
    cells = []
    for row in rows:
        ranges = ((row.first_rank, row.last_rank), *(row.coordinates[index] for index in sharded))
        cells.append([range_text(*one) for one in ranges])
    table = render_table(cells, header=header, right=range(len(header)), indent=" " * _LABEL_WIDTH)
    return [*lines, *table.splitlines()]


def _layout(graph: Graph) -> list[str]:
    attention = next(op for op in graph.setup if isinstance(op, AttachAttention))
    lines = [f"  layout     {of_plan.modules_text(graph)}"]
    if attention.over:
        lines.append(f"  context    {attention.kind} attention over cp, {attention.balance} balance")
    return lines


_STATUS_SECONDS = 1.0
"""How often status.json is updated, at most."""


class RunDisplay:
    """Writes a run's metrics to its directory and to the terminal."""

    def __init__(
        self, directory: RunDirectory, *, stop_after: int | None = None, stream: TextIO = sys.stdout
    ) -> None:
        self.directory = directory
        directory.effort.say = self.noted
        self.stop_after = stop_after
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        self.live: LiveView | None = None
        self.num_steps = 0
        self.first_step = self.last_step = 1
        self.began = time.monotonic()
        self.checkpoint: Path | None = None
        self.status_written = -_STATUS_SECONDS

    def preparing(self, what: str) -> None:
        # FORCE_COLOR colors a log, but must not animate it.
        if self.live is None and self.console.file.isatty():
            self.live = LiveView(self.console)
        if self.live is not None:
            self.live.wait_for(what)

    def started(self, *, first_step: int, num_steps: int) -> None:
        if earlier := self.directory.truncate_metrics(last_step=first_step - 1):
            self.noted(f"moved the metrics of an earlier run to {earlier}")
        self.directory.write_status("running", step=first_step - 1)
        self.first_step, self.num_steps, self.began = first_step, num_steps, time.monotonic()
        self.last_step = min(num_steps, self.stop_after or num_steps)
        if first_step > num_steps:
            done = "the only step is done" if num_steps == 1 else f"all {num_steps} steps are done"
            self.noted(f"nothing to train: {done}")
            return
        self.preparing(f"step {first_step}: the first step of a run takes longest")
        if self.live is not None:
            self.live.starts(num_steps=num_steps, last_step=self.last_step)

    def stepped(self, metrics: StepMetrics) -> None:
        self.directory.append_metrics(metrics)
        self._write_status(metrics.step)
        for evaluation in metrics.evaluations:
            self._print(evaluation_line(evaluation, step=metrics.step))
        time_left = self._time_left(metrics.step)
        if self.live is not None:
            self.live.stepped(metrics, time_left=time_left)
        else:
            line = "  ".join(part.text for part in step_parts(metrics, num_steps=self.num_steps))
            self._print("\n".join((f"{line}  left {time_left}", *source_lines(metrics))))

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None:
        self.directory.add_evaluation(evaluation, step=step)
        self._print(evaluation_line(evaluation, step=step))

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        self.checkpoint = directory
        times = ""
        if behind is not None:
            times = f" in {behind.seconds:.2f} s, of which training waited {behind.blocked_seconds:.2f} s"
        self._print(f"saved {directory}{times}")

    def noted(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.close()
            self.live = None

    def _write_status(self, step: int) -> None:
        """Replace status.json, but not at every short step: each write waits for the disk."""
        now = time.monotonic()
        if now - self.status_written >= _STATUS_SECONDS:
            self.directory.write_status("running", step=step)
            self.status_written = now

    def _print(self, text: str) -> None:
        if not self.console.is_terminal:
            # The same output as Rich's, in a fraction of its time.
            print(text, file=self.console.file, flush=True)
            return
        self.console.print(text, markup=False)

    def _time_left(self, step: int) -> str:
        seconds_a_step = (time.monotonic() - self.began) / (step - self.first_step + 1)
        return clock(seconds_a_step * (self.last_step - step))


def evaluation_line(evaluation: Evaluation, *, step: int) -> str:
    """`step 12  held_out loss 2.3456  (2_048 labels)`."""
    return (
        f"step {step}  {evaluation.label} loss {evaluation.loss:.4f}  ({plural(evaluation.labels, 'label')})"
    )
