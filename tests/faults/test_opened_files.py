"""Everything that planc opens in a run's folder it opens in one place, where links and pipes are refused."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

import planc
from planc.cli.commands import run as command
from planc.cli.main import main
from tests.faults.folder_damage import SETTINGS, prepare_begun
from tests.faults.ranks import endings
from tests.faults.runs import Stage
from tests.patience import WAIT_SECONDS

PACKAGE = Path(planc.__file__).parent
ALLOWED = {
    "runtime/files/plain_files.py",
    # torch writes the trace, under a name that has just been freed.
    "runtime/torch/reporting/profile.py",
}


class _Left(Exception):
    """Raised in place of the end of the process."""


def caller(frame: FrameType | None) -> str:
    """The innermost file of planc that is at work."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            return Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
        frame = frame.f_back
    return ""


def opened(rank: int, world_size: int, run_folder: Path, arguments: tuple[str, ...]) -> dict[str, list[str]]:
    """By the file of planc that opens them, the names in a run's folder that a command opens.

    Left out are directories, and files made under a name that must be free, which follow no link.
    """
    found: dict[str, list[str]] = {}

    def hear(event: str, values: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(values[0], str | bytes | os.PathLike):
            return
        # A plan's relative paths lead out of the folder, by way of it.
        path, flags = Path(os.path.normpath(os.fsdecode(values[0]))), values[2]
        is_new = flags & os.O_EXCL and flags & os.O_CREAT
        if path.is_relative_to(run_folder) and not is_new and not path.is_dir():
            found.setdefault(caller(sys._getframe(1)), []).append(path.name)

    def leave(code: int) -> NoReturn:
        assert code == 0, code
        raise _Left

    command.leave = leave
    sys.addaudithook(hear)
    with contextlib.suppress(_Left), contextlib.redirect_stdout(io.StringIO()):
        if arguments[0] == "run":
            command.main(list(arguments[1:]))
        else:
            assert main(list(arguments)) in (0, 1)
    return found


@pytest.fixture(scope="module")
def begun(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_begun(stage, tmp_path_factory.mktemp("opened") / "run")


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("run PLAN --run-dir RUN", {"metrics.jsonl", "manifest.json", ".lock"}),
        ("checkpoint ls RUN", {"manifest.json"}),
        ("checkpoint verify RUN", {"manifest.json", "plan.json", "rank-00000.safetensors"}),
        ("checkpoint diff RUN/checkpoints/step-1 RUN/checkpoints/step-2", {"manifest.json"}),
        ("diff RUN PLAN", {"plan.json"}),
        ("diff RUN/checkpoints/step-2 PLAN", {"manifest.json", "plan.json"}),
        ("doctor PLAN --run-dir RUN", set()),
    ],
)
def test_a_command_opens_a_runs_files_in_one_place(
    words: str, reads: set[str], stage: Stage, begun: Path, tmp_path: Path
) -> None:
    # A resumed run removes checkpoints while other commands read them.
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    texts = words.replace("RUN", str(folder)).replace("PLAN", str(stage.plans[1])).split()
    more = SETTINGS if texts[0] == "run" else ()
    [ending] = endings(
        opened,
        1,
        folder,
        (*texts, *more),
        group=False,
        environment={"WORLD_SIZE": "1"},
        limit_seconds=WAIT_SECONDS,
    )
    assert ending.code == 0 and not ending.error, ending
    names = {name for found in ending.value.values() for name in found}
    assert reads <= names, "else the audit hears nothing"
    assert {file: found for file, found in ending.value.items() if file not in ALLOWED} == {}
