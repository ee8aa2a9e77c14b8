"""A run directory: plan.json, plans/, metrics.jsonl, status.json, checkpoints/."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from planc.outgoing import redactor
from planc.runtime.checkpoint_format.commit import make_durable
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.files import plain_files, run_files
from planc.runtime.files.best_effort import BestEffort, Lines, retried
from planc.runtime.files.plain_files import NotPlainError, TooLargeError
from planc.runtime.numerics import number
from planc.runtime.observer import Evaluation, StepMetrics
from planc.runtime.run_directory.metrics_file import Line, read_lines, sound_lines
from planc.runtime.run_directory.status_file import replace_text
from planc.strict_json import loads
from planc.tables import plural

_MAX_OWNER_CHARACTERS = 200
_MAX_STATUS_BYTES = 2**20
_METRICS = tuple(one.name for one in fields(StepMetrics))


class FolderInUseError(RunError):
    """Another run writes to the directory, including its status."""


class RunDirectory:
    """The files of a run, written by rank 0 only.

    Only `claim` and `prepare` may end a run, before it trains: they create the directory. All other writes
    are attempts.
    """

    def __init__(self, path: Path, effort: BestEffort | None = None) -> None:
        self.path = path
        self.effort = effort or BestEffort()
        self.origin: Mapping[str, Any] | None = None
        """The checkpoint of another run that the run started from."""
        self._metrics = Lines(path / run_files.METRICS_NAME, self.effort)
        self._claimed: TextIO | None = None

    def claim(self) -> TextIO:
        """Create the directory and claim it, until the returned file is closed, or the process ends.

        FolderInUseError if another run writes here: the two would mix their metrics and their status.
        """
        if self._claimed is not None and not self._claimed.closed:
            return self._claimed
        # Only a run claims its directory. Other commands read its files, and Windows has no such module.
        import fcntl

        def opened() -> TextIO:
            self.path.mkdir(parents=True, exist_ok=True)
            return plain_files.open_to_overwrite(self.path / run_files.LOCK_NAME)

        try:
            file = retried(opened)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            # A rank that records its failure for rank 0 holds it for a moment.
            retried(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB), errors=(BlockingIOError,))
        except BlockingIOError as error:
            owner = _owner(file)
            file.close()
            raise FolderInUseError(
                f"another run writes to {self.path}: {owner}",
                help="wait until it ends, or choose another directory with --run-dir",
                is_shared=False,
            ) from error
        except OSError as error:
            file.close()
            raise self._not_writable(error) from error
        # For a human reader: a full disk may have no room for it.
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        self._claimed = file
        return file

    def release(self) -> None:
        """End the claim: a process may outlive its run."""
        if self._claimed is not None:
            self._claimed.close()

    def other_writer(self) -> str | None:
        """The process of another run that writes here, None if there is none.

        OSError if the system refuses to open the lock.
        """
        import fcntl

        path = self.path / run_files.LOCK_NAME
        if plain_files.kind_of(path) != "file":
            return None
        with plain_files.open_to_overwrite(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _owner(file)
        return None

    def free_lock(self) -> tuple[str, ...]:
        """Rename anything but a plain file in the lock's place; return a line that reports it."""
        path = self.path / run_files.LOCK_NAME

        def free() -> tuple[str, ...]:
            kind = plain_files.kind_of(path)
            if kind in (None, "file"):
                return ()
            return (f"{path} is a {kind}, not a plain file: renamed to {plain_files.set_aside(path).name}",)

        try:
            return retried(free)
        except OSError as error:
            raise self._not_writable(error) from error

    def repair(self) -> tuple[str, ...]:
        """Set aside damaged files other than training state, one line each. The directory must be claimed."""
        notes: list[str] = []
        self.effort.attempt(
            f"set damaged files of {self.path} aside",
            lambda: notes.extend(run_files.set_unusable_aside(self.path)),
        )
        self.effort.attempt(f"repair {self._metrics.path}", lambda: notes.extend(self._repair_metrics()))
        return tuple(notes)

    def prepare(self, artifact: Callable[[Path], str], *, plan_hash: str) -> None:
        """Create the directory, RunError if the system refuses, and store the compiled plan in it.

        `artifact` gives the plan's text for a file in a folder. `plan.json` is the plan that runs now,
        `plans/` keeps every plan that ran here by its hash: a checkpoint refers to its plan by this hash.
        """
        kept = self.path / run_files.KEPT_PLANS
        try:
            # Otherwise a power failure could remove the directory with every checkpoint in it.
            make_durable(self.path)
        except OSError as error:
            raise self._not_writable(error) from error
        for path in (kept / f"{plan_hash}.json", self.path / run_files.PLAN_NAME):
            self.effort.attempt(f"write {path}", partial(_store, path, artifact))

    def truncate_metrics(self, *, last_step: int) -> str | None:
        """Drop the lines of steps that a resumed run repeats, and one that a crash cut short.

        A run from its first step keeps the lines of an earlier run, and returns the name of their file.
        """
        path = self._metrics.path
        steps_before = self.origin["step"] if self.origin is not None else 0

        def truncate() -> str | None:
            if last_step == steps_before and any(sound_lines(path)):
                names = (self.path / f"metrics.{number}.jsonl" for number in itertools.count(1))
                earlier = next(name for name in names if not os.path.lexists(name))
                path.rename(earlier)
                return earlier.name
            if path.exists():
                kept = (line.text + b"\n" for line in sound_lines(path) if line.step <= last_step)
                plain_files.replace(path, kept)
            return None

        return self.effort.attempt(f"drop steps after {last_step} from {path}", truncate)

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every sound line of metrics.jsonl whose step had labels; none if reading fails."""
        path = self._metrics.path
        lines = self.effort.attempt(f"read {path}", lambda: [*sound_lines(path)])
        return [(line.step, line.loss) for line in lines or () if line.has_labels]

    def append_metrics(self, metrics: StepMetrics) -> None:
        # Not asdict, which copies what is only written, every step.
        line = {name: getattr(metrics, name) for name in _METRICS}
        line["evaluations"] = tuple(map(_evaluation, metrics.evaluations))
        line["sources"] = tuple(
            {**asdict(source), "loss": None if source.loss is None else number(source.loss)}
            for source in metrics.sources
        )
        values: dict[str, Any] = {
            name: number(value) if isinstance(value, float) else value
            for name, value in line.items()
            if value not in (None, (), {})
        }
        self._metrics.append(json.dumps(values))

    def add_evaluation(self, evaluation: Evaluation, *, step: int) -> None:
        """Add a postponed evaluation to the line of its step, if metrics.jsonl has that line."""
        path = self._metrics.path
        new = _evaluation(evaluation)

        def added(line: Line) -> bytes:
            if line.step != step:
                return line.text + b"\n"
            entry = loads(line.text)
            others = [each for each in entry.get("evaluations", []) if each["label"] != evaluation.label]
            return json.dumps({**entry, "evaluations": [*others, new]}).encode() + b"\n"

        self.effort.attempt(
            f"add {evaluation.label} to {path}",
            lambda: plain_files.replace(path, map(added, sound_lines(path))),
        )

    def write_status(self, state: str, *, code: ExitCode | None = None, **details: Any) -> None:
        """`state` is running, done, stopped (before the last step, on request), preempted or failed."""
        is_last = state != "running"
        if is_last:
            self._metrics.flush()
        status = {"state": state, "exit_code": None if code is None else int(code), **details}
        if self.origin is not None:
            status["branched_from"] = self.origin
        if failures := self.effort.num_failures:
            status["failed_attempts"] = failures
        # A failure's message is whatever was raised, perhaps with a URL that contains a key.
        text = redactor(os.environ)(json.dumps(status, indent=2)) + "\n"
        path = self.path / run_files.STATUS_NAME
        self.effort.attempt(f"write {path}", lambda: replace_text(path, text, is_last=is_last))

    def is_left_running(self) -> bool:
        """Whether status.json has the state `running`, or can't be read."""
        try:
            text = plain_files.read_utf8(self.path / run_files.STATUS_NAME, max_bytes=_MAX_STATUS_BYTES)
            status = loads(text)
        except (OSError, ValueError):
            return True
        return not isinstance(status, dict) or status.get("state") == "running"

    def _repair_metrics(self) -> tuple[str, ...]:
        """Keep sound lines of metrics.jsonl, and the whole file under another name if any are damaged."""
        path = self._metrics.path
        try:
            num_damaged = sum(line is None for line in read_lines(path))
        except (NotPlainError, TooLargeError) as error:
            return (f"{path}: {error.strerror}: renamed to {plain_files.set_aside(path).name}",)
        if not num_damaged:
            return ()
        aside = plain_files.set_aside(path)
        plain_files.replace(path, (line.text + b"\n" for line in sound_lines(aside)))
        return (
            f"{path} has {plural(num_damaged, 'damaged line')}: kept the others, and renamed the original "
            f"to {aside.name}",
        )

    def _not_writable(self, error: OSError) -> RunError:
        where = f" ({error.filename})" if error.filename else ""
        return RunError(
            f"cannot write the run directory {self.path}: {error.strerror}{where}",
            code=ExitCode.INPUT if error.errno == errno.ENAMETOOLONG else ExitCode.STORAGE,
            help="choose another directory with --run-dir",
            is_shared=False,
        )


def _owner(lock: TextIO) -> str:
    return lock.read(_MAX_OWNER_CHARACTERS).strip() or "another process"


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {"label": evaluation.label, **{name: number(value) for name, value in evaluation.figures.items()}}


def _store(path: Path, artifact: Callable[[Path], str]) -> None:
    path.parent.mkdir(exist_ok=True)
    plain_files.replace(path, (artifact(path.parent).encode(),))
