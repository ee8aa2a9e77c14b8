"""Runs planc in a process that is forked from the server of ranks, which has imported torch.

A process of its own imports torch and transformers for 4 s. What a start itself does, and torchrun, is tested
without this: by `tests.launch.processes.torchrun`, and by commands with another path of imports.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import WAIT_SECONDS
from tests.preloaded import start_server


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code, minus the number of the signal that ended it."""

    code: int
    stdout: str
    stderr: str


def run_forked(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    is_merged: bool = False,
    timeout_seconds: float = WAIT_SECONDS,
) -> Ended:
    """`python -m MODULE ARGUMENTS` in a folder, else in this process's own. TimeoutError if it goes on.

    Merged, all output is in `stdout`.
    """
    start_server()
    with TemporaryDirectory(prefix="forked-") as directory:
        streams = [Path(directory) / name for name in ("stdout", "stdout" if is_merged else "stderr")]
        process = get_context("forkserver").Process(
            target=_run, args=(module, [*arguments], dict(environment), str(folder or Path.cwd()), streams)
        )
        process.start()
        process.join(timeout_seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{module} {' '.join(arguments)} goes on after {timeout_seconds:.0f} s")
        stdout, stderr = (stream.read_text(encoding="utf-8") for stream in streams)
        return Ended(process.exitcode, stdout, "" if is_merged else stderr)


def _run(
    module: str, arguments: list[str], environment: dict[str, str], folder: str, streams: list[Path]
) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    gc.freeze()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    import torch

    # As the environment of most tests asks for; libraries read it when they are imported.
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
