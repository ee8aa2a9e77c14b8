"""How a run that fails says so: on stderr, in the run's folder, and to torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch
from planc.runtime.run_directory.directory import FolderInUseError, RunDirectory
from planc.secrets import redactor

_FIRST_WORD_SECONDS = 2.0
"""How long other ranks wait for rank 0 to report an error that all of them have."""
_TURN_SECONDS = 0.5
"""How much longer each further rank of a node waits, so that one of them speaks."""


class PlanRefused(RunError):
    """The plan has errors; the message is all of them, rendered."""


def report(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """One error for a person: from rank 0 where all ranks fail alike, else from the rank that failed."""
    record(error, launch, directory)
    if error.is_shared and launch.rank != 0:
        # torchrun ends all ranks when the first one leaves, so this one lets rank 0 speak. If it is still
        # there after that, rank 0 has not failed, and nobody else will say why.
        time.sleep(_FIRST_WORD_SECONDS + _TURN_SECONDS * launch.local_rank)
    text = _error_text(error)
    print(text, file=sys.stderr)
    _tell_torchrun(text)
    if os.environ.get("PLANC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()


def record(error: RunError, launch: Launch, directory: RunDirectory | None) -> None:
    """Puts a failure into the run folder's status.json."""
    if isinstance(error, FolderInUseError) or directory is None or not directory.path.is_dir():
        return
    # A full disk may be the very failure; it must not hide behind a second one.
    with contextlib.suppress(OSError):
        if launch.rank == 0:
            directory.write_status("failed", code=error.code, error=error.message, **error.record)
        else:
            _record_for_rank_0(error, launch, directory)


def _record_for_rank_0(error: RunError, launch: Launch, directory: RunDirectory) -> None:
    """The status of a run whose rank 0 has died: by the first of the ranks that are left.

    The folder is rank 0's until its process ends; then the system lets go of it, and one rank gets it.
    """
    try:
        claimed = directory.claim()
    except RunError:
        return
    with claimed:
        if directory.is_left_running():
            lost = {"lost": error.help} if error.code is ExitCode.COMMUNICATION and error.help else {}
            message = f"rank {launch.rank}: {error.message}"
            directory.write_status("failed", code=error.code, error=message, **lost, **error.record)


def _error_text(error: RunError) -> str:
    if isinstance(error, PlanRefused):
        return error.message
    where = f"{error.span}: " if error.span else ""
    help = f"\nhelp: {error.help}" if error.help else ""
    return f"planc: error: {where}{error.message}{help}"


def _tell_torchrun(text: str) -> None:
    """Puts an error where torchrun looks for it, so that its summary ends with the reason."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        # The format of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
        record = {
            "message": {
                "message": redactor(os.environ)(text),
                "extraInfo": {"timestamp": str(int(time.time()))},
            }
        }
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(record), encoding="utf-8")
