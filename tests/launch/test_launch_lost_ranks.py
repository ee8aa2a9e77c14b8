"""One rank stops, ends, fails or dawdles: the others say which one, where it was, and leave in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.launch.processes import LAUNCHER_VARIABLES, ROOT
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, is_within, patient, unhurried

TIMEOUT_SECONDS = unhurried(3)
IN_TIME_SECONDS = TIMEOUT_SECONDS + 12
FAULTY = str(Path(__file__).parent / "faulty_run.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("lost") / "workspace", ("llama",))
    text = plan_text(Case("DP2", "", {"dp_shard": 2}), saves=True)
    path = folder / "two.plan"
    path.write_text(text.replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def staged(plan: Path) -> Path:
    """The same on two stages of a pipeline."""
    case = Case("PP2", "", {"pp": 2}, micro_batch=2)
    path = plan.with_name("staged.plan")
    text = plan_text(case, saves=True).replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1)
    path.write_text(text, encoding="utf-8")
    return path


def start(*command: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **variables}
    return subprocess.Popen(
        (sys.executable, *command),
        env=inherited | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def launched(plan: Path, run: Path, *, fault: str, launcher: str) -> Iterator[subprocess.Popen[str]]:
    """torchrun, or rank 0 of two ranks. Nothing is left of them; torchrun would take 30 s for a stopped one.

    `launcher` is torchrun, mpirun (which says how many ranks share a machine) or srun (which does not).
    """
    arguments = (FAULTY, str(plan), "--run-dir", str(run))
    if launcher == "torchrun":
        processes = [start(*TORCHRUN, *arguments, variables={"FAULT": fault})]
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "FAULT": fault}
        local = {"LOCAL_WORLD_SIZE": "2"} if launcher == "mpirun" else {}
        places = ({"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1"))
        processes = [start(*arguments, variables={**world, **local, **place}) for place in places]
    try:
        yield processes[0]
    finally:
        for pid in [child for process in processes for child in (*children(process), process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.communicate(timeout=WAIT_SECONDS)


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a process has started; none if it has ended."""
    try:
        text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def report(process: subprocess.Popen[str]) -> tuple[str, float]:
    """The first `help:` that a run of planc prints after its first step, and the seconds until then."""
    assert process.stdout is not None and process.stderr is not None
    with patient(process, "the first step, then what a rank says of a lost one"):
        for line in process.stdout:
            if line.startswith("step 1/"):
                break
        began = time.monotonic()
        seen = []
        for line in process.stderr:
            if line.startswith("help: rank "):
                return line.rstrip("\n"), time.monotonic() - began
            seen.append(line)
    raise AssertionError(f"no rank said which one it lost: {seen}")


def test_a_stopped_rank_is_named_with_its_op_and_its_line(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="stop 1 2 forward", launcher="mpirun") as rank_0:
        text, seconds = report(rank_0)
    name = f"rank 1 ({socket.gethostname()}, dp_shard 1)"
    assert text.startswith(f"help: {name} is stopped (SIGSTOP or a debugger), in op `forward` at step 2")
    assert f", {plan}:1, for " in text
    assert is_within(seconds, IN_TIME_SECONDS)
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 6


@pytest.mark.slow
def test_a_rank_that_ends_without_a_word_is_named(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="exit 1 2 optimizer.step", launcher="torchrun") as torchrun:
        text, seconds = report(torchrun)
    assert "dp_shard 1) exited without an error message, in op `optimizer.step` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 6


@pytest.mark.slow
def test_a_crash_shows_the_stacks_of_its_rank(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="crash 1 2 forward", launcher="torchrun") as torchrun:
        _, stderr = torchrun.communicate(timeout=WAIT_SECONDS)
    _, crashed = stderr.split("Fatal Python error: Segmentation fault", 1)
    assert f'File "{FAULTY}"' in crashed
    assert "in _execute" in crashed


@pytest.mark.slow
def test_what_a_failed_rank_said_is_told_by_the_others_too(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="raise 1 2 batch.next", launcher="mpirun") as rank_0:
        text, seconds = report(rank_0)
    assert "dp_shard 1) failed: ValueError: the tokenizer fell over, in op `batch.next` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)


@pytest.mark.slow
def test_a_rank_that_is_busy_elsewhere_is_named(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="sleep 1 2 batch.next", launcher="mpirun") as rank_0:
        text, seconds = report(rank_0)
    assert "dp_shard 1) does not take part, in op `batch.next` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)


@pytest.mark.slow
def test_ranks_that_may_be_on_several_machines_meet_in_the_store(plan: Path, tmp_path: Path) -> None:
    with launched(plan, tmp_path, fault="linger 1 2 forward", launcher="srun") as rank_0:
        text, seconds = report(rank_0)
    assert "dp_shard 1) does not respond, in op `forward` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["forward", "pipeline.receive"])
def test_a_stopped_stage_is_named(op: str, staged: Path, tmp_path: Path) -> None:
    with launched(staged, tmp_path, fault=f"stop 1 2 {op}", launcher="mpirun") as rank_0:
        text, seconds = report(rank_0)
    name = f"rank 1 ({socket.gethostname()}, pp 1)"
    assert text.startswith(f"help: {name} is stopped (SIGSTOP or a debugger), in op `{op}` at step 2")
    assert is_within(seconds, IN_TIME_SECONDS)
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 6


@pytest.mark.slow
def test_a_stage_that_ends_without_a_word_is_named(staged: Path, tmp_path: Path) -> None:
    with launched(staged, tmp_path, fault="exit 1 2 backward", launcher="torchrun") as torchrun:
        text, seconds = report(torchrun)
    assert "pp 1) exited without an error message, in op `backward` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 6


@pytest.mark.slow
def test_a_stage_that_is_busy_elsewhere_is_named(staged: Path, tmp_path: Path) -> None:
    with launched(staged, tmp_path, fault="sleep 1 2 forward", launcher="mpirun") as rank_0:
        text, seconds = report(rank_0)
    assert "pp 1) is behind, in op `forward` at step 2" in text
    assert is_within(seconds, IN_TIME_SECONDS)
