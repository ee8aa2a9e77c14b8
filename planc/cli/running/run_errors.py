"""Reports of a failed run: on stderr, in the run directory, and to torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from planc.diagnostics import Diagnostic
from planc.outgoing import harmless, redactor
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.failures import exit_code, memory_help, summary
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.process import Launch
from planc.runtime.run_directory.directory import FolderInUseError, RunDirectory

_FIRST_WORD_SECONDS = 2.0
"""The time that other ranks wait for rank 0 to report an error that all of them have."""
_TURN_SECONDS = 0.5
"""The additional time that each further rank of a node waits, so only one of them reports."""


def run_directory(path: Path) -> RunDirectory:
    """The run directory at `path`; failed writes that do not end the run are reported on stderr."""
    return RunDirectory(path, BestEffort(lambda text: print(f"planc: {text}", file=sys.stderr, flush=True)))


class PlanRefused(RunError):
    """The plan has errors; the message has all of them, rendered: each is harmless already, and colored."""

    def __init__(self, message: str, *, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.diagnostics = diagnostics

    def __str__(self) -> str:
        return self.message


def report(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Report an error once: from rank 0 if all ranks have it, else from the rank that failed."""
    record(error, launch, directory)
    if error.is_shared and launch.rank != 0:
        # torchrun ends all ranks when the first one exits, so this one lets rank 0 report. If this rank still
        # runs after that, rank 0 has not failed, and no other rank will report.
        time.sleep(_FIRST_WORD_SECONDS + _TURN_SECONDS * launch.local_rank)
    text = error_text(error)
    print(text, file=sys.stderr)
    tell_torchrun(text)
    if os.environ.get("PLANC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()


def report_unforeseen(error: BaseException, launch: Launch, directory: RunDirectory | None) -> int:
    """Report an error of the system outside of any op, or a bug in planc with its traceback."""
    code = exit_code(error)
    help = memory_help(error) if code is ExitCode.MEMORY else None
    failure = RunError(summary(error, code=code), code=code, help=help, is_shared=False)
    if code is ExitCode.INTERNAL:
        record(failure, launch, directory)
        traceback.print_exception(error)
    else:
        report(failure, launch, directory)
    return code


def record(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Record a failure in the run directory's status.json, also before the run has made its directory.

    Rank 0 holds the directory's lock until its process ends. If rank 0 has died, or has not come, one of the
    other ranks writes the status.
    """
    if isinstance(error, FolderInUseError) or directory is None:
        return
    if launch.rank and error.code is not ExitCode.COMMUNICATION and not os.path.isdir(directory.path):
        # Rank 0 is about to make the directory, and will find out that this rank is lost.
        return
    try:
        directory.claim()
    except RunError:
        # Another run's, or not to be written, as the error may say already.
        return
    if launch.rank == 0:
        directory.write_status("failed", code=error.code, error=error.message, **error.record)
    elif directory.is_left_running():
        message = f"rank {launch.rank}: {error.message}"
        directory.write_status("failed", code=error.code, error=message, **error.record)


def error_text(error: RunError) -> str:
    """The lines that a failed run ends with."""
    if isinstance(error, PlanRefused):
        return error.message
    where = f"{error.span}: " if error.span else ""
    help = f"\nhelp: {error.help}" if error.help else ""
    return f"planc: error: {where}{error.message}{help}"


def tell_torchrun(text: str) -> None:
    """Write an error where torchrun looks for it, so its summary ends with the reason."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # The format of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
        record = {
            "message": {
                "message": redactor(os.environ)(harmless(text)),
                "extraInfo": {"timestamp": str(int(time.time()))},
            }
        }
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(record), encoding="utf-8")
