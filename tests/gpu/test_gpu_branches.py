"""Branches for CUDA that no other test enters, on a device in name only (`tests.bench.fake_device`)."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from planc.runtime.errors import RunError
from planc.runtime.process import Launch
from planc.runtime.torch.checkpoint.background import Stage
from planc.runtime.torch.parallel.mesh import choose_device
from planc.runtime.torch.reporting.metrics import _memory_bytes
from planc.runtime.torch.training.forward_backward import _seed
from tests.bench.fake_device import DEVICE, FakeDevice

CUDA = torch.device("cuda", 1)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """PyTorch sees two devices; the list has what it was asked to make current."""
    made_current: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    return made_current


def test_a_save_copies_without_waiting_for_each_tensor() -> None:
    device, synchronized = FakeDevice(), []
    stream = SimpleNamespace(
        synchronize=lambda: synchronized.append(len(device.waits)), wait_stream=lambda _: None
    )
    streams = {"current_stream": lambda _: stream, "Stream": lambda _: stream, "stream": nullcontext}
    with patch.multiple(torch.cuda, **streams), device.entered():
        sources = [torch.full((3,), float(value), device=DEVICE) for value in (1, 2)]
        chunks = [SimpleNamespace(tensor=name) for name in ("buffer", "weight")]
        plan: Any = SimpleNamespace(sources=lambda _: sources, chunks=chunks)
        stage = Stage(plan, {}, device=CUDA)
        device.is_listing = True
        stage.allocate()
        for _ in range(2):
            stage.begin({}, changing={"buffer"})()
        device.is_listing = False
        assert all(device.is_pinned(copy) and not device.has(copy) for copy in stage.copies)
    assert device.waits == [] and synchronized == [0] * 2
    assert [copy.tolist() for copy in stage.copies] == [[1.0] * 3, [2.0] * 3]


def test_a_rank_computes_on_the_device_of_its_local_rank(two_devices: list[Any]) -> None:
    launch = Launch(rank=3, world_size=4, local_rank=1)
    assert choose_device("auto", launch) == choose_device("nccl", launch) == CUDA
    assert two_devices == [CUDA, CUDA]


def test_a_plan_with_gloo_computes_on_cpus(two_devices: list[Any]) -> None:
    assert choose_device("gloo", Launch()) == torch.device("cpu") and two_devices == []


@pytest.mark.usefixtures("two_devices")
def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(RunError, match="LOCAL_RANK = 2, but PyTorch sees 2 CUDA devices"):
        choose_device("auto", Launch(rank=2, world_size=3, local_rank=2))


def test_the_seed_of_a_step_is_of_host_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    _seed(7, device=CUDA)
    assert seeds == [7] and torch.initial_seed() == 7


def test_memory_on_a_device_is_of_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10 if device == CUDA else 0)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 20 if device == CUDA else 0)
    assert _memory_bytes(CUDA) == (10, 20)
