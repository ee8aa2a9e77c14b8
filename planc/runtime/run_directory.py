"""A run's folder: plan.json, plans/, metrics.jsonl, status.json, checkpoints/."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from planc.runtime.checkpoints.commit import make_durable
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.numerics import number
from planc.runtime.observer import Evaluation, StepMetrics
from planc.secrets import redactor

PLAN_NAME = "plan.json"
KEPT_PLANS = "plans"
_LOCK_NAME = ".lock"


class FolderInUseError(RunError):
    """Another run writes to the folder, its status too."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Written by rank 0 alone."""

    path: Path

    def claim(self) -> TextIO:
        """Makes the folder this process's own until the file that it returns is closed, or the process ends.

        FolderInUseError where another run writes here: two would mix their metrics and their status.
        """
        # Only a run claims its folder. Others name its files, and Windows has no such module.
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / _LOCK_NAME).open("a+", encoding="utf-8")
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise FolderInUseError(
                f"another run writes to {self.path}: {owner}",
                help="wait until it ends, or choose another folder with --run-dir",
                is_shared=False,
            ) from error
        except OSError as error:
            file.close()
            raise self._not_writable(error) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        return file

    def prepare(self, artifact: Callable[[Path], str], *, plan_hash: str) -> None:
        """Creates the folder and stores the compiled plan in it; RunError if the system refuses.

        `artifact` gives the plan's text for a file in a folder. `plan.json` is what runs now, `plans/` keeps
        every plan that ran here by its hash: a checkpoint says by which one it was saved.
        """
        kept = self.path / KEPT_PLANS
        try:
            # Else a power failure could take the folder away with every checkpoint in it.
            make_durable(kept)
            self._replace(f"{KEPT_PLANS}/{plan_hash}.json", artifact(kept))
            self._replace(PLAN_NAME, artifact(self.path))
        except OSError as error:
            raise self._not_writable(error) from error

    def truncate_metrics(self, *, last_step: int) -> str | None:
        """Drops the lines of steps that a resumed run does again, and one that a crash cut short.

        A run from its first step drops none of an earlier run's: it gives the name of the file that has them.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return None
        lines = path.read_text(encoding="utf-8").splitlines()
        if last_step == 0 and lines:
            numbers = itertools.count(1)
            earlier = next(one for n in numbers if not (one := self.path / f"metrics.{n}.jsonl").exists())
            path.rename(earlier)
            return earlier.name
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= last_step]
        self._replace("metrics.jsonl", "".join(f"{line}\n" for line in kept))
        return None

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every line of metrics.jsonl whose step had labels."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [entry for entry in map(json.loads, lines) if entry.get("labels") != 0]
        return [(entry["step"], float(entry["loss"])) for entry in entries]

    def append_metrics(self, metrics: StepMetrics) -> None:
        values: dict[str, Any] = {
            name: number(value) if isinstance(value, float) else value
            for name, value in asdict(metrics).items()
            if value not in (None, (), {})
        }
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def add_evaluation(self, found: Evaluation, *, step: int) -> None:
        """Adds an evaluation that is made up for to the line of its step, if metrics.jsonl has that line."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        for entry in entries:
            if entry["step"] == step:
                one = {**asdict(found), "loss": number(found.loss)}
                others = [each for each in entry.get("evaluations", []) if each["label"] != found.label]
                entry["evaluations"] = [*others, one]
        self._replace("metrics.jsonl", "".join(f"{json.dumps(entry)}\n" for entry in entries))

    def write_status(self, state: str, *, code: ExitCode | None = None, **details: Any) -> None:
        """`state` is running, done, stopped (before the last step, as asked), preempted or failed."""
        status = {"state": state, "exit_code": None if code is None else int(code), **details}
        # A failure's message is whatever was raised, perhaps with an address that holds a key.
        self._replace("status.json", redactor(os.environ)(json.dumps(status, indent=2)) + "\n")

    def _not_writable(self, error: OSError) -> RunError:
        return RunError(
            f"cannot write the run's folder {self.path}: {error.strerror}",
            code=ExitCode.STORAGE,
            help="choose another with --run-dir",
            is_shared=False,
        )

    def _replace(self, name: str, text: str) -> None:
        path = self.path / name
        # The thread that hears signals writes the status too.
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
