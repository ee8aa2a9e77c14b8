"""The run's folder as several ranks see it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from torch.distributed import FileStore

from planc.runtime.errors import RunError
from planc.runtime.process import Launch
from planc.runtime.torch.agreement import shared_folder
from planc.runtime.torch.agreement.shared_folder import require_shared_folder
from tests.dist.pool import run_ranks


def look(
    rank: int, world_size: int, store: str, folders: tuple[str, ...], sight_seconds: float
) -> tuple[int, str]:
    """The exit code and message of this rank's refusal; (0, "") where there is none."""
    launch = Launch(rank, world_size, rank, "127.0.0.1", 1)
    shared_folder._SIGHT_SECONDS = sight_seconds
    try:
        require_shared_folder(FileStore(store, world_size), launch, Path(folders[rank]))
    except RunError as error:
        return int(error.code), error.message
    return 0, ""


def looks(tmp_path: Path, *folders: Path, sight_seconds: float = 5.0) -> list[tuple[int, str]]:
    arguments = (str(tmp_path / "store"), tuple(str(folder) for folder in folders), sight_seconds)
    return run_ranks(look, len(folders), *arguments, init=False)


def test_one_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    assert looks(tmp_path, folder, folder, folder) == [(0, "")] * 3
    assert list(folder.iterdir()) == []


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert looks(tmp_path, tmp_path / "run", tmp_path / "link") == [(0, "")] * 2


def test_a_folder_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    mounted = threading.Timer(1.0, (tmp_path / "link").symlink_to, (tmp_path / "run",))
    mounted.start()
    assert looks(tmp_path, tmp_path / "run", tmp_path / "link") == [(0, "")] * 2
    mounted.join()


def test_all_ranks_hear_which_one_has_another_folder(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    outcomes = looks(tmp_path, shared, shared, own, sight_seconds=1.0)
    assert len(set(outcomes)) == 1
    code, message = outcomes[0]
    assert code == 4
    assert message.startswith(f"rank 2 does not see what rank 0 writes into {shared} on ")
    assert f"it has {own} on " in message
    assert list(shared.iterdir()) == []
    assert not own.exists()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_all_ranks_hear_that_nothing_can_be_written(num_ranks: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "run"
    expected = (4, f"cannot write the run directory {folder}: Not a directory")
    assert looks(tmp_path, *[folder] * num_ranks) == [expected] * num_ranks
