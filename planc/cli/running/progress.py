"""A run's display on rank 0: one redrawn line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from planc.figures.speed import measured_memory, tflops_per_second_per_device, tokens_per_second
from planc.record import record
from planc.runtime.observer import Evaluation, SaveTimes, StepMetrics
from planc.runtime.run_directory.directory import RunDirectory
from planc.tables import plural

_BAR_CELLS = 12
_TIME_CELLS = 9
"""The width of `0:12:34`, a space before it, and one before the bar."""
_STATUS_SECONDS = 1.0
"""How often status.json is updated, at most."""


class RunDisplay:
    """Writes a run's metrics to its directory and to the terminal."""

    def __init__(
        self, directory: RunDirectory, *, stop_after: int | None = None, stream: TextIO = sys.stdout
    ) -> None:
        self.directory = directory
        self.stop_after = stop_after
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.num_steps = 0
        self.first_step = self.last_step = 1
        self.began = time.monotonic()
        self.checkpoint: Path | None = None
        self.status_written = -_STATUS_SECONDS

    def started(self, *, first_step: int, num_steps: int) -> None:
        if earlier := self.directory.truncate_metrics(last_step=first_step - 1):
            self.noted(f"moved the metrics of an earlier run to {earlier}")
        self.directory.write_status("running", step=first_step - 1)
        self.first_step, self.num_steps, self.began = first_step, num_steps, time.monotonic()
        self.last_step = min(num_steps, self.stop_after or num_steps)
        if first_step > num_steps:
            done = "the only step is done" if num_steps == 1 else f"all {num_steps} steps are done"
            self.noted(f"nothing to train: {done}")
        elif self.console.file.isatty():  # FORCE_COLOR colors a log, but must not animate it
            text = TextColumn("{task.description}", table_column=Column(no_wrap=True), markup=False)
            columns = (text, BarColumn(_BAR_CELLS), TimeRemainingColumn())
            self.progress = Progress(*columns, console=self.console)
            self.task = self.progress.add_task("", total=self.last_step, completed=first_step - 1)
            self.progress.start()

    def stepped(self, metrics: StepMetrics) -> None:
        self.directory.append_metrics(metrics)
        self._write_status(metrics.step)
        for one in metrics.evaluations:
            self._print(evaluation_line(one, step=metrics.step))
        if self.progress is not None and self.task is not None:
            room = self.console.width - _BAR_CELLS - _TIME_CELLS
            line = fit_step(step_parts(metrics, num_steps=self.num_steps), cells=room)
            self.progress.update(self.task, completed=metrics.step, description=line)
        else:
            line = "  ".join(part.text for part in step_parts(metrics, num_steps=self.num_steps))
            self._print(f"{line}  left {self._time_left(metrics.step)}")

    def evaluated(self, found: Evaluation, *, step: int) -> None:
        self.directory.add_evaluation(found, step=step)
        self._print(evaluation_line(found, step=step))

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        self.checkpoint = directory
        times = ""
        if behind is not None:
            times = f" in {behind.seconds:.2f} s, of which training waited {behind.blocked_seconds:.2f} s"
        self._print(f"saved {directory}{times}")

    def noted(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

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
        console = self.progress.console if self.progress is not None else self.console
        console.print(text, markup=False)

    def _time_left(self, step: int) -> str:
        seconds_a_step = (time.monotonic() - self.began) / (step - self.first_step + 1)
        seconds = round(seconds_a_step * (self.last_step - step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def evaluation_line(found: Evaluation, *, step: int) -> str:
    """`step 12  held_out loss 2.3456  (2_048 labels)`."""
    return f"step {step}  {found.label} loss {found.loss:.4f}  ({plural(found.labels, 'label')})"


@record
class StepPart:
    """A figure of a step's line; a narrow terminal drops the smallest `weight` first."""

    text: str
    weight: int


def step_parts(metrics: StepMetrics, *, num_steps: int) -> tuple[StepPart, ...]:
    """`step 12/60`, `loss 2.3456` and so on, in display order."""
    width = len(str(num_steps))
    parts = [
        StepPart(f"step {metrics.step:>{width}}/{num_steps}", 7),
        StepPart(f"loss {metrics.loss:.4f}" if metrics.labels else "no labels", 6),
        StepPart(f"grad_norm {metrics.grad_norm:.3f}", 4),
        StepPart(f"lr {metrics.learning_rate:.2e}", 2),
        StepPart(tokens_per_second(metrics.tokens_per_second).text, 5),
    ]
    if (reached := metrics.tflops_per_second_per_device) is not None:
        parts.append(StepPart(tflops_per_second_per_device(reached).text, 0))
    if metrics.mfu is not None:
        parts.append(StepPart(f"mfu {metrics.mfu:.1%}", 3))
    memory = measured_memory(metrics.memory_bytes, kind=metrics.memory_kind)
    return (*parts, StepPart(f"{memory.text} {metrics.memory_kind}", 1))


def fit_step(parts: Sequence[StepPart], *, cells: int) -> str:
    """Join the parts to a line of at most `cells`, without the parts of least weight that do not fit."""
    kept = list(parts)
    while len(kept) > 1 and len("  ".join(part.text for part in kept)) > cells:
        kept.remove(min(kept, key=lambda part: part.weight))
    return "  ".join(part.text for part in kept)
