"""TensorBoard's event files, written without PyTorch or TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.runtime.trackers.tracker import Opening


class TensorboardTracker:
    """A folder of event files."""

    def __init__(self, opening: Opening) -> None:
        # Part of `planc[tensorboard]`: no other run needs it.
        from tensorboard.summary import Writer

        self.writer: Any = Writer(str(opening.run_folder / "tensorboard"))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        # A run that dies leaves what it has logged.
        self.writer.flush()

    def finish(self, *, is_done: bool) -> None:
        self.writer.close()
