"""How a run ended can be read in its folder: on a full disk, without rank 0, and with no thread to be had."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planc.cli.running.preflight import require_threads
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.failures import THREADS_HELP, exit_code, memory_help, summary
from planc.runtime.run_directory.directory import RunDirectory
from planc.runtime.run_directory.status_file import ROOM_BYTES, replace_text
from tests.launch.faulty import FAULTY, PYTHON, run_faulty
from tests.launch.faulty_run_fill import fill
from tests.launch.processes import Outcome, free_port, start
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, wait_until
from tests.slow import slow_except

MIB = 2**20


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("status") / "workspace", ("llama",))
    for name, mesh in {"one": {}, "two": {"dp_shard": 2}}.items():
        text = plan_text(Case(name, mesh=mesh), saves=True)
        text = text.replace("mesh {", "mesh {\n  timeout = 20 s\n", 1)
        (folder / f"{name}.plan").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB; the test is skipped where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "planc-test", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"mount is not there: {error}")
    if done.returncode != 0:
        pytest.skip(f"this user may not mount a file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    return found


def test_a_status_is_replaced_on_a_disk_without_a_byte(small_disk: Path) -> None:
    path = small_disk / "status.json"
    replace_text(path, "running")
    assert (small_disk / ".status.json.room").stat().st_size == ROOM_BYTES
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "probe").write_bytes(bytes(4096))
    replace_text(path, "failed" * 1000)
    assert path.read_text() == "failed" * 1000
    assert not list(small_disk.glob(".status.json.*[0-9]")), "nothing else is left"


def test_room_is_taken_again_when_there_is_some(small_disk: Path) -> None:
    path = small_disk / "status.json"
    replace_text(path, "running")
    fill(small_disk)
    replace_text(path, "failed")
    for filler in small_disk.glob("filler-*"):
        filler.unlink()
    replace_text(path, "running")
    assert (small_disk / ".status.json.room").stat().st_size == ROOM_BYTES


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("op", ["log", "checkpoint.save"])
def test_a_run_on_a_full_disk_says_how_it_ended(op: str, workspace: Path, small_disk: Path) -> None:
    # The metrics of step 1 end no run: the save of step 3 does.
    step = 1 if op == "log" else 3
    environment = {"FAULT": f"fill 0 {step} {op}", "FILLED": str(small_disk), "RANK": "0"}
    environment |= {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    folder = small_disk / "run"
    command = (PYTHON, *FAULTY, str(workspace / "one.plan"), "--run-dir", str(folder))
    outcome = start(*command, environment=environment)
    assert outcome.code == ExitCode.STORAGE, outcome.stderr
    assert "No space left on device" in outcome.stderr
    assert (status(folder)["state"], status(folder)["exit_code"]) == ("failed", ExitCode.STORAGE)
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
@pytest.mark.parametrize("op", slow_except(["forward", "checkpoint.save"], "forward"))
def test_a_rank_that_is_left_writes_the_status_of_a_dead_rank_0(
    op: str, workspace: Path, tmp_path: Path
) -> None:
    step = 2 if op == "forward" else 3
    outcomes = run_faulty(workspace / "two.plan", tmp_path / "run", fault=f"exit 0 {step} {op}")
    assert [outcome.code for outcome in outcomes] == [9, ExitCode.COMMUNICATION], outcomes[1].stderr
    found = status(tmp_path / "run")
    assert (found["state"], found["exit_code"]) == ("failed", ExitCode.COMMUNICATION)
    assert found["error"].startswith("rank 1: ")
    assert found["lost"].startswith("rank 0 (")


def test_rank_0_writes_which_rank_was_lost_and_how_far_the_run_was(workspace: Path, tmp_path: Path) -> None:
    outcomes = run_faulty(workspace / "two.plan", tmp_path / "run", fault="exit 1 2 forward")
    assert [outcome.code for outcome in outcomes] == [ExitCode.COMMUNICATION, 9], outcomes[0].stderr
    found = status(tmp_path / "run")
    assert (found["state"], found["exit_code"]) == ("failed", ExitCode.COMMUNICATION)
    assert (found["step"], found["lost"].startswith("rank 1 (")) == (1, True)


def test_one_of_the_ranks_that_are_left_writes_and_none_writes_over_a_live_rank_0(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    claimed = directory.claim()
    directory.write_status("running", step=1)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_record, [tmp_path] * 4, range(1, 5)))
    assert status(tmp_path)["state"] == "running"
    claimed.close()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_record, [tmp_path] * 4, range(1, 5)))
    first = status(tmp_path)
    assert first["state"] == "failed"
    _record(tmp_path, 9)
    assert status(tmp_path) == first


def _record(folder: Path, rank: int) -> None:
    """What a rank that is left records, in a process of its own."""
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from planc.cli.running.run_errors import record\n"
        "from planc.runtime.errors import ExitCode, RunError\n"
        "from planc.runtime.process import Launch\n"
        "from planc.runtime.run_directory.directory import RunDirectory\n"
        "error = RunError('lost', code=ExitCode.COMMUNICATION, help='rank 0 ended')\n"
        "record(error, Launch(int(sys.argv[2]), 16, 0), RunDirectory(Path(sys.argv[1])))\n"
    )
    outcome = start(sys.executable, "-c", script, str(folder), str(rank))
    assert outcome.code == 0, outcome.stderr


def limited(name: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(name, (value, value))


def test_a_run_that_gets_too_few_threads_says_so_before_it_starts(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    done = subprocess.run(
        [PYTHON, "-m", "planc.run", str(workspace / "one.plan"), "--run-dir", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "4000"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        preexec_fn=limited(resource.RLIMIT_AS, 2**30),
    )
    assert done.returncode == ExitCode.MEMORY, done.stderr
    assert "of the 4012 that a run needs: can't start new thread" in done.stderr
    assert "ulimit -u" in done.stderr
    assert "Traceback" not in done.stderr
    assert (status(folder)["state"], status(folder)["exit_code"]) == ("failed", ExitCode.MEMORY)


def outcomes_of(*commands: Sequence[str]) -> list[Outcome]:
    """How the two ranks of a run end, started as mpirun would, each by its own command."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    world["MASTER_PORT"] = str(free_port())

    def start_rank(rank: int) -> Outcome:
        place = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return start(PYTHON, "-m", "planc.run", *commands[rank], environment=place)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(start_rank, range(2)))


def outcome_of(*command: str) -> Outcome:
    """How a run of one rank ends."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return start(PYTHON, "-m", "planc.run", *command, environment=place)


def test_ranks_that_differ_leave_a_status_though_the_run_has_no_directory_yet(
    workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "new"
    command = (str(workspace / "two.plan"), "--run-dir", str(folder))
    outcomes = outcomes_of(command, (*command, "--set", "model.seed=5"))
    assert [outcome.code for outcome in outcomes] == [ExitCode.INPUT] * 2, outcomes
    assert (status(folder)["state"], status(folder)["exit_code"]) == ("failed", ExitCode.INPUT)


def test_a_plan_with_errors_leaves_a_status_in_the_directory_that_it_was_given(tmp_path: Path) -> None:
    plan, folder = tmp_path / "typo.plan", tmp_path / "run"
    plan.write_text("modle {}\n", encoding="utf-8")
    assert outcome_of(str(plan), "--run-dir", str(folder)).code == ExitCode.INPUT
    assert (status(folder)["state"], status(folder)["exit_code"]) == ("failed", ExitCode.INPUT)


def test_a_refused_run_writes_nothing_into_the_directory_of_the_run_that_has_it(tmp_path: Path) -> None:
    plan, directory = tmp_path / "typo.plan", RunDirectory(tmp_path / "run")
    plan.write_text("modle {}\n", encoding="utf-8")
    with directory.claim():
        directory.write_status("running", step=3)
        assert outcome_of(str(plan), "--run-dir", str(directory.path)).code == ExitCode.INPUT
    assert status(directory.path)["state"] == "running"


def test_every_rank_of_a_second_run_says_that_the_first_has_the_directory(
    workspace: Path, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run")
    command = (str(workspace / "two.plan"), "--run-dir", str(directory.path))
    with directory.claim():
        outcomes = outcomes_of(command, command)
    assert [outcome.code for outcome in outcomes] == [ExitCode.INPUT] * 2, outcomes
    for outcome in outcomes:
        assert f"another run writes to {directory.path}: process {os.getpid()} on " in outcome.stderr
        assert "frame #" not in outcome.stderr, "a stack of C++"


@pytest.mark.slow
def test_what_ends_a_run_comes_without_stacks_and_wishes_of_libraries(
    workspace: Path, tmp_path: Path
) -> None:
    outcomes = run_faulty(workspace / "two.plan", tmp_path / "run", fault="exit 1 2 forward")
    lines = outcomes[0].stderr.splitlines()
    error = next(index for index, line in enumerate(lines) if line.startswith("planc: error: "))
    assert "in op `forward` (step 2, rank 0 (dp_shard 0)): " in lines[error]
    assert lines[error + 1].startswith("help: rank 1 (")
    assert not any(
        noise in outcomes[0].stderr for noise in ("GLHF", "pair.cc", "frame #", "Exception raised")
    )


@pytest.mark.slow
def test_a_thread_that_is_refused_later_ends_the_run_in_a_sentence(workspace: Path, tmp_path: Path) -> None:
    environment = {"FAULT": "crowd 0 1 batch.next", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    settings = ("--set", "data.prefetch=2", "--run-dir", str(tmp_path / "run"))
    outcome = start(PYTHON, *FAULTY, str(workspace / "one.plan"), *settings, environment=environment)
    assert outcome.code != 0
    assert "Traceback" not in outcome.stderr, outcome.stderr
    assert status(tmp_path / "run")["state"] == "failed"


def test_a_process_with_too_little_memory_for_its_libraries_says_so(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    done = subprocess.run(
        [PYTHON, "-m", "planc.run", str(workspace / "one.plan"), "--run-dir", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        preexec_fn=limited(resource.RLIMIT_AS, 500 * MIB),
    )
    assert done.returncode == ExitCode.MEMORY, done.stderr
    assert "Traceback" not in done.stderr
    assert (status(folder)["state"], status(folder)["exit_code"]) == ("failed", ExitCode.MEMORY)


def test_a_thread_that_is_refused_is_no_lack_of_memory_in_words() -> None:
    error = RuntimeError("can't start new thread")
    assert exit_code(error) is ExitCode.MEMORY
    assert (
        summary(error, code=ExitCode.MEMORY)
        == "the system refused to start another thread: can't start new thread"
    )
    assert memory_help(error) == THREADS_HELP


def test_threads_that_are_to_be_had_are_given_back() -> None:
    before = len(os.listdir("/proc/self/task"))
    require_threads({"OMP_NUM_THREADS": "8"})
    # The system lists a thread for a moment after it has ended.
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before + 1, "the threads' end")


def test_a_status_that_is_in_nobodys_hands_is_left_running(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.is_left_running()
    directory.write_status("done", code=ExitCode.DONE)
    assert not directory.is_left_running()
    (tmp_path / "status.json").write_text("{", encoding="utf-8")
    assert directory.is_left_running()
    assert RunError("x").is_shared
