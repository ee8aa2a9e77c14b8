"""Reports of a failed run: on stderr, in the run directory, and to torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from planc.outgoing import harmless
from planc.runtime.errors import RunError
from planc.runtime.process import Launch
from planc.runtime.run_directory.directory import FolderInUseError, RunDirectory
from planc.secrets import redactor

_FIRST_WORD_SECONDS = 2.0
"""How long other ranks wait for rank 0 to report an error that all of them have."""
_TURN_SECONDS = 0.5
"""How much longer each further rank of a node waits, so only one of them reports."""


class PlanRefused(RunError):
    """The plan has errors; the message has all of them, rendered: each is harmless already, and colored."""

    def __init__(self, message: str, **options: Any) -> None:
        super().__init__(message, **options)
        self.message = message


def report(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Report an error once: from rank 0 if all ranks have it, else from the rank that failed."""
    record(error, launch, directory)
    if error.is_shared and launch.rank != 0:
        # torchrun ends all ranks when the first one exits, so this one lets rank 0 report. If this rank still
        # runs after that, rank 0 has not failed, and no other rank will report.
        time.sleep(_FIRST_WORD_SECONDS + _TURN_SECONDS * launch.local_rank)
    text = _error_text(error)
    print(text, file=sys.stderr)
    _tell_torchrun(text)
    if os.environ.get("PLANC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()


def record(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Record a failure in the run directory's status.json."""
    if isinstance(error, FolderInUseError) or directory is None or not directory.path.is_dir():
        return
    # The failure may be a full disk; a second error must not hide it.
    with contextlib.suppress(OSError):
        if launch.rank == 0:
            directory.write_status("failed", code=error.code, error=error.message, **error.record)
        else:
            _record_for_rank_0(error, launch, directory)


def _record_for_rank_0(error: RunError, launch: Launch, directory: RunDirectory) -> None:
    """Write the status of a run whose rank 0 has died, from the first of the other ranks.

    Rank 0 holds the directory's lock until its process ends; then one of the other ranks gets it.
    """
    try:
        claimed = directory.claim()
    except RunError:
        return
    with claimed:
        if directory.is_left_running():
            message = f"rank {launch.rank}: {error.message}"
            directory.write_status("failed", code=error.code, error=message, **error.record)


def _error_text(error: RunError) -> str:
    if isinstance(error, PlanRefused):
        return error.message
    where = f"{error.span}: " if error.span else ""
    help = f"\nhelp: {error.help}" if error.help else ""
    return f"planc: error: {where}{error.message}{help}"


def _tell_torchrun(text: str) -> None:
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
