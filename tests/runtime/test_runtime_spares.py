"""Ranks without a place leave well when the run is done, and with an error when it cannot be reached."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from planc.runtime.errors import ExitCode
from planc.runtime.process import Launch
from planc.runtime.torch.parallel import spares
from tests.patience import WAIT_SECONDS

SPARE = Launch(rank=2, world_size=3)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[TCPStore]:
    """Rank 0's store, which the spare reaches over a connection of its own; it ends when it is taken out."""
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = host.port
    monkeypatch.setattr(spares, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(spares, "meet", lambda launch: TCPStore("127.0.0.1", port, is_master=False))
    return [host]


def test_a_run_that_is_done_lets_its_spares_go_before_it_ends(hosts: list[TCPStore]) -> None:
    with ThreadPoolExecutor() as threads:
        spare = threads.submit(spares.stand_by, SPARE)
        spares.dismiss(hosts[0], num_spares=1)
        hosts.clear()
        assert spare.result(timeout=WAIT_SECONDS) == ExitCode.DONE


def test_spares_of_a_run_that_fails_leave_with_an_error(hosts: list[TCPStore]) -> None:
    """Else their node would have done its part, and would not meet the others for the next attempt."""
    with ThreadPoolExecutor() as threads:
        spare = threads.submit(spares.stand_by, SPARE)
        time.sleep(0.5)
        assert not spare.done()
        hosts.clear()
        assert spare.result(timeout=WAIT_SECONDS) == ExitCode.COMMUNICATION
