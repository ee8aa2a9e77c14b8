"""What would let a run train and then refuse to save is found before its first step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.running.preflight import require_storage
from planc.graph.graph import Graph
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch
from planc.runtime.run_directory.obstacles import num_kept, obstacles
from tests.checkpoints.sample import save_sample
from tests.plans import FULL, checked, write_plan

NOBODY = 65534


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Of a plan that saves, keeps some, resumes and exports."""
    text = FULL.replace(
        "  keep_last = 2\n", '  keep_last = 2\n  export "hf" { when = end, dtype = bfloat16 }\n'
    )
    found = checked(write_plan(tmp_path_factory.mktemp("plan"), text=text)).graph
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with one checkpoint, and what dead saves have left."""
    root = tmp_path / "run" / "checkpoints"
    save_sample(root, step=3)
    for name in ("step-4.tmp", "step-1.deleted.tmp", "notes", "step-5.copy"):
        (root / name).mkdir()
    return root.parent


def link(path: Path) -> None:
    path.symlink_to(path.parent)


def link_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def file(path: Path) -> None:
    path.write_text("")


def test_what_runs_leave_is_no_obstacle(folder: Path, graph: Graph) -> None:
    assert obstacles(folder, graph) == ()
    assert obstacles(folder.parent / "absent", graph) == ()


@pytest.mark.parametrize("make", [link, link_nowhere, pipe, file])
@pytest.mark.parametrize(
    "name", ["checkpoints", "checkpoints/step-0", "checkpoints/step-62", "checkpoints/step-999999"]
)
def test_an_entry_named_like_a_checkpoint_is_one(
    name: str, make: Callable[[Path], None], folder: Path, graph: Graph
) -> None:
    if (folder / name).exists():
        shutil.rmtree(folder / name)
    make(folder / name)
    [found] = obstacles(folder, graph)
    assert found.path == folder / name
    with pytest.raises(RunError, match="P945") as caught:
        require_storage(folder, launch=Launch(), graph=graph, inventory=None)
    assert caught.value.code is ExitCode.STORAGE
    assert str(folder / name) in caught.value.message
    assert caught.value.help


@pytest.mark.parametrize("make", [link, link_nowhere, pipe, file])
@pytest.mark.parametrize("name", ["export", "export/hf"])
def test_an_entry_in_place_of_an_export_is_one(
    name: str, make: Callable[[Path], None], folder: Path, graph: Graph
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    assert [found.path for found in obstacles(folder, graph)] == [folder / name]


def test_a_folder_that_no_run_has_exported_is_one(folder: Path, graph: Graph) -> None:
    (folder / "export" / "hf").mkdir(parents=True)
    (folder / "export" / "hf" / "config.json").write_text("{}")
    assert [found.path.name for found in obstacles(folder, graph)] == ["hf"]
    (folder / "export" / "hf" / "planc_export.json").write_text('{"step": 3}')
    assert obstacles(folder, graph) == ()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-3", "checkpoints/step-4.tmp", "export"])
def test_a_directory_that_this_user_cannot_change_is_one(
    name: str, folder: Path, graph: Graph, tmp_path: Path
) -> None:
    (folder / "export").mkdir()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    (folder / name).chmod(0o555)
    if os.geteuid() == 0:
        os.chown(folder / name, 0, 0)
    here = Path(folder.name)
    assert as_nobody(lambda: [found.path for found in obstacles(here, graph)] == [here / name], tmp_path)


def as_nobody(holds: Callable[[], bool], folder: Path) -> bool:
    """Whether it holds in a folder for a process that the file system does not let do everything."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.chdir(folder)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            code = 0 if holds() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_checkpoints_that_cannot_be_listed_are_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    assert num_kept(tmp_path) == 0
