"""What PyTorch sees, asked before anything else is installed: `python -m tests.gpu.probe [--json]`.

Exits with 2 and one line if there is no CUDA device. With `--json` it prints what it found, wherever it runs.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Any


def facts() -> dict[str, Any]:
    """Releases, and name and bytes of each CUDA device. ImportError without PyTorch."""
    # Lazy, so the lack of it is one line.
    import torch

    has_cuda = torch.cuda.is_available()
    indices = range(torch.cuda.device_count() if has_cuda else 0)
    properties = [torch.cuda.get_device_properties(index) for index in indices]
    has_nccl = has_cuda and torch.distributed.is_nccl_available()
    return {
        "torch": torch.__version__,
        "release": metadata.version("torch"),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        "devices": [[one.name, one.total_memory] for one in properties],
    }


def main(argv: list[str]) -> int:
    try:
        found = facts()
    except ImportError as error:
        reason = str(error).splitlines()[0]
        print(f"make gpu: {sys.executable} can't import PyTorch: {reason}", file=sys.stderr)
        return 2
    if argv == ["--json"]:
        print(json.dumps(found))
    elif not found["devices"]:
        text = f"PyTorch {found['torch']} sees no CUDA device, so there is nothing to measure here"
        print(f"make gpu: {text}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
