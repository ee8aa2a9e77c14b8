"""A run's display on rank 0: redrawn lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from planc.cli.running.live import LiveView, clock, source_lines, step_parts
from planc.runtime.observer import Evaluation, Observer, SaveTimes, StepMetrics, WaitCause
from planc.runtime.run_directory.directory import RunDirectory
from planc.tables import plural

_STATUS_SECONDS = 1.0
"""The shortest time between updates of status.json."""


class RunDisplay(Observer):
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

    def branched(self, origin: Mapping[str, Any]) -> None:
        self.directory.origin = origin

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
        self._print(f"saved {directory}{save_times(behind) if behind is not None else ''}")

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


_WAITS: Mapping[WaitCause, str] = {
    "start": "to start it",
    "memory": "for host memory",
    "copies": "for copies",
    "ranks": "for other ranks",
    "end": "for its end",
}


def save_times(times: SaveTimes) -> str:
    """` in 9.81 s, of which training waited 3.50 s: 0.40 s for copies, 3.10 s for its end`."""
    waits = [f"{times.waits[cause]:.2f} s {text}" for cause, text in _WAITS.items() if cause in times.waits]
    shown = [text for text in waits if not text.startswith("0.00 ")]
    causes = f": {', '.join(shown)}" if shown else ""
    return f" in {times.seconds:.2f} s, of which training waited {times.blocked_seconds:.2f} s{causes}"


def evaluation_line(evaluation: Evaluation, *, step: int) -> str:
    """`step 12  held_out loss 2.3456  (2_048 labels)`, with what there is of pairs after the loss."""
    means = {name: value for name, value in evaluation.figures.items() if name not in ("loss", "labels")}
    of_pairs = "".join(f"  {name} {value:.4g}" for name, value in means.items())
    labels = plural(evaluation.labels, "label")
    return f"step {step}  {evaluation.label} loss {evaluation.loss:.4f}{of_pairs}  ({labels})"
