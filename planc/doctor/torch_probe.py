"""Print facts of PyTorch and its devices, as one line of JSON on stdout.

It is a separate program because PyTorch takes seconds to import, and a broken one can end the process.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist


def facts() -> dict[str, Any]:
    """The fields of `planc.doctor.machine.TorchFacts`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        has_cuda = torch.cuda.is_available()
    # For example a driver that is too old. A machine without a driver gets no warning.
    messages = [str(warning.message).splitlines()[0] for warning in caught if str(warning.message)]
    nccl: tuple[int, ...] = ()
    if has_cuda and dist.is_nccl_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "nccl": ".".join(str(part) for part in nccl) or None,
        "backends": [
            *(["gloo"] if dist.is_gloo_available() else []),
            *(["nccl"] if dist.is_nccl_available() else []),
        ],
        "devices": [
            {"name": one.name, "memory_bytes": one.total_memory, "capability": [one.major, one.minor]}
            for one in properties
        ],
        "cuda_problem": next((text for text in messages if text.startswith("CUDA initialization")), None),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()) + "\n")
