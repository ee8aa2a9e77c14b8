"""What PyTorch sees, asked before anything else is installed: `python -m tests.gpu.probe [--json]`.

Exits with 2 and one line if there is no CUDA device, unless the session's own `--device cpu` is among the
arguments. With `--json` it prints what it found, wherever it runs.
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(prog="tests.gpu.probe", add_help=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cuda")
    arguments, _ = parser.parse_known_args(argv)
    try:
        found = facts()
    except ImportError as error:
        reason = str(error).splitlines()[0]
        print(f"make gpu: {sys.executable} can't import PyTorch: {reason}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(found))
    elif not found["devices"] and arguments.device == "cuda":
        text = f"PyTorch {found['torch']} sees no CUDA device, so there is nothing to measure here"
        print(f"make gpu: {text}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
