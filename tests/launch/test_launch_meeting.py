"""Ranks that do not come, and a place to meet that nobody knows: told in time, by name."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch

from planc.runtime.backends.torch import mesh
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.launch import Launch
from tests.launch.processes import free_port

CPU = torch.device("cpu")


def connect(address: str) -> tuple[RunError, float]:
    """How the first of four ranks, started alone, gives up, and the seconds until then."""
    launch = Launch(0, 4, 0, address, free_port(), False, None)
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        mesh.connect(launch, device=CPU, timeout_seconds=600, entries=())
    return caught.value, time.monotonic() - began


def test_all_ranks_that_did_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_ARRIVAL_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(mesh, "_PARTING_TIMEOUT", timedelta(seconds=1))
    error, seconds = connect("127.0.0.1")
    assert error.code is ExitCode.COMMUNICATION
    assert error.message == "ranks 1, 2, 3 did not come within 1 s"
    assert seconds < 10


def test_a_machine_that_no_service_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_NAME_SECONDS", 0.0)
    error, seconds = connect("nobody.invalid")
    assert error.code is ExitCode.COMMUNICATION
    assert error.message.startswith("MASTER_ADDR = nobody.invalid names no machine: ")
    assert seconds < 20


def test_all_of_it_takes_less_than_a_minute() -> None:
    """What the other tests cut short."""
    waited = mesh._ARRIVAL_TIMEOUT + mesh._PARTING_TIMEOUT
    assert waited.total_seconds() < 60
    assert mesh._NAME_SECONDS < 60
