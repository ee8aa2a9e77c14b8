"""DCP's way of failing, turned into planc's."""

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
    # Only there: it changes the filters of every thread, and saves may run beside training.
    with warnings.catch_warnings():
        # One process without a process group is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextmanager
def dcp_errors() -> Iterator[None]:
    """Raises one CheckpointError where ranks failed with CheckpointErrors, else a RuntimeError."""
    try:
        with contextlib.nullcontext() if dist.is_initialized() else _unwarned():
            yield
    except CheckpointException as failure:
        errors = {rank: wrapped[0] for rank, wrapped in failure.failures.items()}
        failures = {rank: error for rank, error in errors.items() if isinstance(error, CheckpointError)}
        if len(failures) < len(errors):
            # DCP's own is a BaseException, which no handler of failures would see.
            raise RuntimeError(str(failure)) from failure
        raise combined(failures) from failure
