"""What a failure is, told from the error alone."""

from __future__ import annotations

import errno

import pytest
import torch
import torch.distributed

from planc.runtime.errors import ExitCode
from planc.runtime.failures import exit_code, summary


def test_an_allocation_that_torch_is_refused_is_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    code = exit_code(caught.value)
    assert code is ExitCode.MEMORY
    assert summary(caught.value, code=code) == f"out of memory: could not allocate {2**50} bytes"


def test_a_devices_lack_of_memory_is_told_with_its_unit() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79 GiB in all")
    code = exit_code(error)
    assert code is ExitCode.MEMORY
    assert summary(error, code=code) == "out of memory: could not allocate 2.50 GiB"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), ExitCode.MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ExitCode.MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.STORAGE),
        (ConnectionResetError(), ExitCode.COMMUNICATION),
        (RuntimeError("gloo: Connection closed by peer"), ExitCode.COMMUNICATION),
        (torch.distributed.DistNetworkError("Connection reset by peer"), ExitCode.COMMUNICATION),
        (torch.distributed.DistStoreError("wait timeout"), ExitCode.COMMUNICATION),
        (ValueError("shape"), ExitCode.INTERNAL),
    ],
)
def test_the_code_tells_the_kind(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code
