"""The rank pool itself: order, failures, timeouts, and what a rank finds."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.dist.pool import RankError, run_ranks


def sum_of_ranks(rank: int, world_size: int) -> tuple[int, float]:
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return rank, total.item()


def fail_on_one(rank: int, world_size: int, failing: int) -> None:
    if rank == failing:
        raise ValueError("the chosen rank fails")
    dist.barrier()


def record_and_hang(rank: int, world_size: int, directory: str) -> None:
    (Path(directory) / str(rank)).write_text(str(os.getpid()))
    if rank == 0:
        time.sleep(600)


def die(rank: int, world_size: int) -> None:
    os._exit(7)


def crash(rank: int, world_size: int) -> None:
    # No core file in the folder that the tests run in.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def scaled(rank: int, world_size: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor * rank


def own_init(rank: int, world_size: int) -> tuple[str, str, int]:
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    return os.environ["RANK"], os.environ["LOCAL_RANK"], dist.get_world_size()


def settings(rank: int, world_size: int) -> tuple[str, str, int]:
    return os.environ["HF_HUB_OFFLINE"], os.environ["GLOO_SOCKET_IFNAME"], torch.get_num_threads()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_in_rank_order_from_one_group() -> None:
    assert run_ranks(sum_of_ranks, 3) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_a_world_of_one_works() -> None:
    assert run_ranks(sum_of_ranks, 1) == [(0, 0.0)]


def test_an_exception_names_its_rank_and_shows_its_traceback() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2 failed:.*in fail_on_one.*the chosen rank fails"):
        run_ranks(fail_on_one, 2, 1)


def test_a_dead_rank_is_a_failure_with_its_exit_code() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0 of 1 failed:.*exit code 7"):
        run_ranks(die, 1)


def test_a_crash_shows_where_the_rank_was() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0 of 1 failed:.*exit code -11.*test_pool\.py.* in crash"):
        run_ranks(crash, 1)


def test_a_timeout_names_the_late_rank_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="rank 0 of 2 did not finish within 2 seconds"):
        run_ranks(record_and_hang, 2, str(tmp_path), timeout_seconds=2)
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert not any(is_running(pid) for pid in pids)


def test_tensors_travel_by_value() -> None:
    results = run_ranks(scaled, 2, torch.arange(3))
    assert [result.tolist() for result in results] == [[0, 0, 0], [0, 1, 2]]


def test_without_init_a_rank_finds_what_torchrun_would_set() -> None:
    assert run_ranks(own_init, 2, init=False) == [("0", "0", 2), ("1", "1", 2)]


def test_ranks_are_offline_on_the_loopback_with_one_thread() -> None:
    assert run_ranks(settings, 1) == [("1", "lo", 1)]
