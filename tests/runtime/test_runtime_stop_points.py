"""Where a run ends early: ranks at different places agree on one, and nothing is sent before a signal."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from planc.runtime.errors import RunError
from planc.runtime.stopping import stop_points
from planc.runtime.stopping.grace import Stretches, agent_command, grace_seconds
from planc.runtime.stopping.notice import Notice
from planc.runtime.stopping.stop_points import StopPoints
from tests.patience import WAIT_SECONDS


class MemoryStore:
    """A store of one process, which counts what it is asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: dict[str, str] = {}
        self.num_sets = 0

    def set(self, key: str, value: str, /) -> None:
        with self._lock:
            self.values[key] = value
            self.num_sets += 1

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            found = int(self.values.get(key, "0")) + amount
            self.values[key] = str(found)
            return found

    def check(self, keys: list[str], /) -> bool:
        with self._lock:
            return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        with self._lock:
            return [self.values[key].encode() for key in keys]


def ranks(world_size: int, *, store: MemoryStore, timeout_seconds: float = WAIT_SECONDS) -> list[StopPoints]:
    found = [
        StopPoints(Notice(), store=store, rank=rank, world_size=world_size, timeout_seconds=timeout_seconds)
        for rank in range(world_size)
    ]
    for one in found:
        one.start(on_first_request=lambda name: None)
    return found


def passed(points: StopPoints, *, seed: int, told_at: int | None, in_step: bool = False) -> int:
    """The place at which a rank stops that dawdles as its seed says."""
    draw = random.Random(seed)
    for number in range(1, 100_000):
        time.sleep(draw.random() * 0.004)
        if number == told_at:
            points._notice.request("SIGTERM")
        if points.reached(in_step=in_step):
            return number
    return 0


@pytest.mark.parametrize("told", [(0,), (2,), (0, 1, 2, 3)], ids=str)
def test_ranks_at_different_places_stop_at_the_same_one(told: tuple[int, ...]) -> None:
    # They wait for each other only here, so they are many points apart.
    points = ranks(4, store=MemoryStore())
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(
                lambda rank: passed(points[rank], seed=rank, told_at=20 if rank in told else None), range(4)
            )
        )
    assert len(set(found)) == 1 and found[0] >= 20, found


def test_ranks_that_wait_for_each_other_between_places_stop_as_well() -> None:
    points, barrier = ranks(2, store=MemoryStore()), threading.Barrier(2)

    def stopped(rank: int) -> int:
        for number in range(1, 100_000):
            barrier.wait(WAIT_SECONDS)
            if number == 7 and rank == 1:
                points[1]._notice.request("SIGTERM")
            if points[rank].reached():
                return number
        return 0

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(stopped, range(2)))
    assert found[0] == found[1] >= 7


def test_nothing_is_sent_before_a_rank_is_told() -> None:
    store = MemoryStore()
    points = ranks(2, store=store)
    for _ in range(1000):
        assert not any(one.reached() for one in points)
    assert store.num_sets == 0


def test_a_short_step_is_finished_and_a_long_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = StopPoints(Notice(signal_name="SIGTERM"))
    assert not alone.reached(in_step=True)
    assert alone.reached()
    monkeypatch.setattr(stop_points, "LONG_STEP_SECONDS", 0.0)
    assert alone.reached(in_step=True)


def test_a_rank_that_does_not_answer_is_named() -> None:
    store = MemoryStore()
    points = StopPoints(Notice(signal_name="SIGTERM"), store=store, rank=0, world_size=3, timeout_seconds=1.0)
    store.set("stop/2", "1 0.0")
    points.start(on_first_request=lambda name: None)
    with pytest.raises(RunError, match="rank 1 did not respond to the request to stop within 1 s"):
        for _ in range(1000):
            points.reached()
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("agent", "environment", "seconds"),
    [
        ((), {}, 30),
        (("torchrun", "--shutdown-timeout", "77", "-m", "planc.run"), {}, 77),
        (("torchrun", "--shutdown_timeout=78"), {}, 78),
        (("torchrun", "--shutdown-timeout", "77"), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}, 77),
        (("bash",), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}, 9),
        (("bash",), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"}, 30),
    ],
)
def test_the_grace_is_what_torchrun_was_told(
    agent: tuple[str, ...], environment: dict[str, str], seconds: int
) -> None:
    assert grace_seconds(environment, agent) == seconds


def test_the_command_of_a_process_is_read() -> None:
    assert agent_command(2**22 + 1) == ()


def test_what_cannot_be_left_is_added_to_the_save() -> None:
    stretches = Stretches(save_seconds=20.0)
    stretches.add("a step", 4.0)
    stretches.add("a micro-batch of an evaluation", 15.0)
    stretches.add("a step", 5.0)
    assert stretches.between == ("a micro-batch of an evaluation", 15.0)
    assert stretches.total_seconds == 35.0
