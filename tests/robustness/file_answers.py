"""What planc answers to bad files and environments: each command in a process of its own, forked ready."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planc.cli.main import main
from tests.faults.ranks import endings
from tests.faults.state import saved_root
from tests.launch.processes import LAUNCHER_VARIABLES
from tests.patience import WAIT_SECONDS
from tests.robustness.bad_files import CHECKPOINTS, KEY, FileCase, workspace


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """What a command printed, its exit code, and the seconds it took; `code` is None for one that hangs."""

    code: int | None
    text: str
    seconds: float


class Folders:
    """Fresh copies of a sound workspace, and of a sound checkpoint where a case wants one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The first process waits until torch is imported for all.
        endings(_ready, 1, group=False, limit_seconds=WAIT_SECONDS)
        self._sound = workspace(folder)
        self._saved = saved_root(folder / "saved", steps=(10,), world_size=3)

    def of(self, case: FileCase, number: int) -> Path:
        """A workspace that the case has spoilt."""
        own = Path(shutil.copytree(self._sound, self._folder / f"case{number}"))
        if case in CHECKPOINTS:
            shutil.copytree(self._saved, own / "checkpoints")
        case.arrange(own)
        return own


def answer(case: FileCase, folder: Path) -> FileAnswer:
    [ending] = endings(
        _answer, 1, folder, case.command, dict(case.environment), group=False, limit_seconds=WAIT_SECONDS
    )
    lines = (folder / "answer").read_text(encoding="utf-8", errors="replace")
    seconds = float((folder / "seconds").read_text()) if (folder / "seconds").exists() else ending.seconds
    return FileAnswer(ending.code, lines, seconds)


def problems(case: FileCase, found: FileAnswer) -> Iterator[str]:
    """What is not as declared."""
    if found.code != case.code:
        yield f"exit code {found.code}, not {case.code}"
    if case.said not in found.text:
        yield f"does not say {case.said!r}"
    if KEY in found.text:
        yield "shows a key"
    if "Traceback" in found.text or "internal error" in found.text:
        yield "shows a traceback"


def _ready(rank: int, world_size: int) -> None:
    """Does nothing."""


def _answer(
    rank: int, world_size: int, folder: Path, command: tuple[str, ...], environment: Mapping[str, str]
) -> None:
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update({"HF_HUB_OFFLINE": "1", **environment})
    os.chdir(folder)
    descriptor = os.open(folder / "answer", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", encoding="utf-8") for stream in (1, 2))
    began = time.monotonic()
    code = main(list(command))
    (folder / "seconds").write_text(str(time.monotonic() - began))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
