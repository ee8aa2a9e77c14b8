"""Ranks that do not come, and a place to meet that nobody knows: told in time, by name."""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch
from planc.runtime.ranks.rank_claims import Claim, await_keys, register
from planc.runtime.torch.agreement.rank_0 import PARTING_TIMEOUT
from planc.runtime.torch.parallel import mesh
from tests.launch.processes import Outcome, free_port, start
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import is_within, unhurried

CPU = torch.device("cpu")
TIMEOUT_SECONDS = unhurried(3)


def connect(address: str) -> tuple[RunError, float]:
    """How the first of four ranks, started alone, gives up, and the seconds until then."""
    launch = Launch(0, 4, 0, address, free_port(), False, None)
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        mesh.connect(launch, device=CPU, timeout_seconds=600, entries=())
    return caught.value, time.monotonic() - began


@pytest.mark.slow
def test_all_ranks_that_did_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_ARRIVAL_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(mesh, "PARTING_TIMEOUT", timedelta(seconds=1))
    error, seconds = connect("127.0.0.1")
    assert error.code is ExitCode.COMMUNICATION
    assert error.message == "ranks 1, 2, 3 did not join within 1 s"
    assert is_within(seconds, 10)


def ranks_started(
    *ranks: int, world_size: int = 2, timeout: str = "3 s", port: int | None = None, plan: Path
) -> list[Outcome]:
    """How processes of these ranks end, each started by hand with `mesh.timeout`."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    world = {"WORLD_SIZE": str(world_size), **where}

    def start_rank(rank: int) -> Outcome:
        environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        settings = ("--set", f"mesh.timeout={timeout}", "--run-dir", str(plan.parent / "run"))
        return start(sys.executable, "-m", "planc.run", str(plan), *settings, environment=environment)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(start_rank, ranks))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("meeting") / "workspace", ("llama",))
    path = folder / "two.plan"
    path.write_text(plan_text(Case("DP2", "", {"dp_shard": 2})), encoding="utf-8")
    return path


def test_rank_0_that_is_not_there_is_named_by_those_that_are(plan: Path) -> None:
    (outcome,) = ranks_started(1, plan=plan)
    assert outcome.code == ExitCode.COMMUNICATION
    assert f"rank 1 on {socket.gethostname()}: nothing listens at 127.0.0.1:" in outcome.stderr
    assert "after 3 s (Connection refused): rank 0 has not started there, or has exited" in outcome.stderr
    assert is_within(outcome.seconds, 40)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_processes_of_one_rank_both_say_so(rank: int, plan: Path) -> None:
    outcomes = ranks_started(rank, rank, plan=plan, timeout="600 s")
    for outcome in outcomes:
        assert outcome.code == ExitCode.COMMUNICATION, outcome.stderr
        assert f"another process on {socket.gethostname()} has RANK = {rank} too" in outcome.stderr


@pytest.mark.slow
def test_a_world_of_more_ranks_than_were_started_is_told_by_those_that_were(plan: Path) -> None:
    """Under torchrun, whose ranks find another WORLD_SIZE than it gave them."""
    four = plan.parent / "four.plan"
    four.write_text(plan_text(Case("DP4", "", {"dp_shard": 4})), encoding="utf-8")
    agent = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    rank = ("env", "WORLD_SIZE=4", sys.executable, "-m", "planc.run", str(four))
    settings = ("--set", f"mesh.timeout={TIMEOUT_SECONDS} s", "--run-dir", str(four.parent / "four"))
    outcome = start(*agent, "--no-python", *rank, *settings)
    assert outcome.code == 1
    assert f"ranks 2, 3 did not join within {TIMEOUT_SECONDS} s" in outcome.stderr


@pytest.mark.slow
def test_a_rank_that_is_told_of_another_world_says_so_and_the_others_name_it(plan: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        port = free_port()
        started = [
            threads.submit(ranks_started, rank, world_size=size, port=port, plan=plan)
            for rank, size in ((0, 2), (1, 3))
        ]
        (first,), (second,) = (one.result() for one in started)
    assert second.code == ExitCode.INPUT
    assert "the mesh does not match the world size" in second.stderr
    assert first.code == ExitCode.COMMUNICATION
    assert "rank 1 did not join within 3 s" in first.stderr


def test_a_rank_that_is_there_twice_is_named_on_all_ranks() -> None:
    """As on several machines, where no name tells: by the store."""
    port = free_port()
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    launches = [Launch(rank, 3, rank, "127.0.0.1", port, True, None) for rank in (0, 1)]

    def failure(launch: Launch) -> str:
        store = TCPStore("127.0.0.1", port, is_master=False)
        try:
            register(store, launch)
            await_keys(store, ["never"], patience=timedelta(seconds=20))
        except RunError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(failure, [*launches, launches[1]]))
    assert server is not None
    assert all(text.startswith("two processes have RANK = 1: one on ") for text in found), found


def test_a_claim_ends_with_the_meeting() -> None:
    launch = Launch(1, 2, 1, "127.0.0.1", free_port(), False, None)
    with Claim(launch) as first:
        with pytest.raises(RunError, match=r"another process on .* has RANK = 1 too"):
            Claim(launch)
        with pytest.raises(RunError, match=r"another process on .* has RANK = 1 too"):
            first.require_alone()
    Claim(launch).close()


def test_a_machine_that_no_service_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_NAME_SECONDS", 0.0)
    error, seconds = connect("nobody.invalid")
    assert error.code is ExitCode.COMMUNICATION
    assert error.message.startswith("MASTER_ADDR = nobody.invalid does not resolve: ")
    assert is_within(seconds, 20)


def test_all_of_it_takes_less_than_a_minute() -> None:
    """What the other tests cut short."""
    waited = mesh._ARRIVAL_TIMEOUT + PARTING_TIMEOUT
    assert waited.total_seconds() < 60
    assert mesh._NAME_SECONDS < 60
