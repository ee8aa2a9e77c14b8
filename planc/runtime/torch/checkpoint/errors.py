"""Turn checkpoint errors into the errors that end a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
)
from planc.runtime.errors import ExitCode, RunError


@contextmanager
def run_errors() -> Iterator[None]:
    """Checkpoint errors with their exit codes. Every rank raises the same one."""
    try:
        yield
    except CheckpointError as error:
        code = ExitCode.INPUT
        if isinstance(error, CheckpointStorageError):
            code = ExitCode.STORAGE
        elif isinstance(error, CorruptCheckpointError):
            code = ExitCode.CORRUPT_CHECKPOINT
        raise RunError(error.message, code=code, help=error.help) from error
