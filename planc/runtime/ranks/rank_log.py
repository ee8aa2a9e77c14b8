"""A rank's own log: one JSON object per line, each with the rank's place in the mesh."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planc.outgoing import redactor
from planc.runtime.files.best_effort import BestEffort, Lines
from planc.runtime.files.run_files import LOGS
from planc.runtime.observer import Evaluation, Observer, SaveTimes, StepMetrics


class RankLog(Observer):
    """Writes a run's events to `logs/rank-3.jsonl`; a resumed run appends to the same file."""

    def __init__(
        self, run_folder: Path, *, rank: int, host: str, mesh: Mapping[str, int], effort: BestEffort
    ) -> None:
        self._always = {"rank": rank, "host": host, "mesh": dict(mesh)}
        self._redact = redactor(os.environ)
        # Line by line, so a killed rank leaves everything it wrote.
        self._lines = Lines(run_folder / LOGS / f"rank-{rank}.jsonl", effort)

    def write(self, event: str, **values: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, **self._always, "event": event, **values})
        self._lines.append(self._redact(line))

    def preparing(self, what: str) -> None:
        """Write nothing: status and watch name a rank's op."""

    def branched(self, origin: Mapping[str, Any]) -> None:
        self.write("branched", origin=origin)

    def started(self, *, first_step: int, num_steps: int) -> None:
        self.write("started", first_step=first_step, num_steps=num_steps)

    def stepped(self, metrics: StepMetrics) -> None:
        """Write nothing: these are the numbers of all ranks. This rank's own come by `write`."""

    def evaluated(self, evaluation: Evaluation, *, step: int) -> None:
        """Write nothing: the mean is over all ranks."""

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        times = {} if behind is None else {**asdict(behind), "blocked_seconds": behind.blocked_seconds}
        self.write("saved", directory=str(directory), **times)

    def noted(self, text: str) -> None:
        self.write("noted", text=text)
