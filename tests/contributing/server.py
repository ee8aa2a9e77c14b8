"""Forks commands of a copy of planc from a process that has imported PyTorch and transformers, and no planc.

A process of its own would import both for seconds. A line of standard input is an order, as JSON; a line of
standard output is the exit code of what was ordered.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib import import_module

LIBRARIES = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
)


def main() -> None:
    """Serve orders. A child leaves the loop, and becomes the command: it ends as any process does."""
    for name in LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(arguments: list[str], folder: str, root: str, output: str, environment: dict[str, str]) -> None:
    """Run `python -m planc ARGUMENTS` by the copy below `root`, in a folder, with both streams in a file."""
    assert "planc" not in sys.modules
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = root
    sys.argv = ["planc", *arguments]
    runpy.run_module("planc", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
