"""Translate DCP's errors into planc's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.torch.checkpoint.agreement import combined


@contextmanager
def _unwarned() -> Iterator[None]:
    # Only here: it changes the filters of every thread, and saves may run during training.
    with warnings.catch_warnings():
        # Here one process without a process group is intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextmanager
def dcp_errors() -> Iterator[None]:
    """Raise one CheckpointError if ranks failed with CheckpointErrors, else a RuntimeError."""
    try:
        with contextlib.nullcontext() if dist.is_initialized() else _unwarned():
            yield
    except CheckpointException as failure:
        errors = {rank: wrapped[0] for rank, wrapped in failure.failures.items()}
        failures = {rank: error for rank, error in errors.items() if isinstance(error, CheckpointError)}
        if len(failures) < len(errors):
            # DCP's own error is a BaseException, which no error handler would catch.
            raise RuntimeError(str(failure)) from failure
        raise combined(failures) from failure
