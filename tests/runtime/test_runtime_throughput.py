"""FLOP/s, MFU, and where a step's time goes."""

from __future__ import annotations

import time

import pytest

from planc.graph.op import Phase
from planc.runtime.throughput import Work
from planc.runtime.torch.reporting.instruments import PhaseClock
from tests.bench.fake_device import FakeDevice

WORK = Work(flops_per_step=8 * 10**15, world_size=4, peak_flops=1e15)


@pytest.fixture
def clock() -> PhaseClock:
    return PhaseClock(has_queue=False)


def spend(clock: PhaseClock, phase: Phase, *, seconds: float) -> None:
    clock.enter(phase)
    time.sleep(seconds)


def test_flops_are_of_one_rank() -> None:
    assert WORK.tflops_per_second_per_device(seconds=4.0) == 500.0


def test_mfu_is_the_share_of_the_devices_peak() -> None:
    assert WORK.mfu(seconds=4.0) == 0.5


def test_without_a_device_there_is_no_mfu() -> None:
    assert Work(flops_per_step=1, world_size=1).mfu(seconds=1.0) is None


def test_time_counts_to_the_phase_that_it_was_spent_in(clock: PhaseClock) -> None:
    clock.enter(Phase.DATA)
    clock.begin_step()
    spend(clock, Phase.FORWARD, seconds=0.02)
    spend(clock, Phase.BACKWARD, seconds=0.04)
    spend(clock, Phase.FORWARD, seconds=0.02)
    clock.enter(Phase.OTHER)
    found = clock.read()
    assert tuple(found) == tuple(Phase)
    assert found[Phase.FORWARD] >= 0.04e9
    assert found[Phase.BACKWARD] >= 0.04e9
    assert found[Phase.OPTIMIZER] == found[Phase.CHECKPOINT] == 0


def test_a_step_that_is_not_read_leaves_nothing_behind(clock: PhaseClock) -> None:
    spend(clock, Phase.FORWARD, seconds=0.05)
    clock.enter(Phase.DATA)
    clock.begin_step()
    assert clock.read()[Phase.FORWARD] == 0


def test_saves_count_to_the_next_reading(clock: PhaseClock) -> None:
    clock.read()
    spend(clock, Phase.CHECKPOINT, seconds=0.02)
    for _ in range(2):
        clock.enter(Phase.DATA)
        clock.begin_step()
    assert clock.read()[Phase.CHECKPOINT] >= 0.02e9
    assert clock.read()[Phase.CHECKPOINT] == 0


def test_marking_a_phase_costs_next_to_nothing(clock: PhaseClock) -> None:
    began = time.process_time()
    for _ in range(1000):
        clock.enter(Phase.FORWARD)
        clock.enter(Phase.BACKWARD)
    clock.begin_step()
    assert (time.process_time() - began) / 2000 < 100e-6, "seconds a mark: 1 us on an idle machine"


def test_with_a_queue_what_follows_the_steps_read_counts_to_the_next_reading() -> None:
    device, found = FakeDevice(), []
    with device.entered():
        clock = PhaseClock(has_queue=True)
        for _ in range(2):
            spend(clock, Phase.DATA, seconds=0.01)
            clock.begin_step()
            spend(clock, Phase.FORWARD, seconds=0.02)
            clock.enter(Phase.OTHER)
            device.wait("the step's read")
            clock.settle()
            spend(clock, Phase.OPTIMIZER, seconds=0.03)
            found.append(clock.read())
    assert device.num_waits == 2
    first, second = found
    assert first[Phase.FORWARD] >= 20e6 and first[Phase.OPTIMIZER] == 0
    assert second[Phase.FORWARD] >= 20e6 and second[Phase.OPTIMIZER] >= 30e6


def test_with_a_queue_a_step_that_is_not_read_leaves_its_saves_alone() -> None:
    device = FakeDevice()
    with device.entered():
        clock = PhaseClock(has_queue=True)
        for _ in range(3):
            spend(clock, Phase.DATA, seconds=0.01)
            clock.begin_step()
            clock.enter(Phase.OTHER)
            device.wait("the step's read")
            clock.settle()
            spend(clock, Phase.OPTIMIZER, seconds=0.01)
            spend(clock, Phase.CHECKPOINT, seconds=0.02)
        spend(clock, Phase.DATA, seconds=0.01)
        clock.begin_step()
        clock.enter(Phase.OTHER)
        device.wait("the step's read")
        clock.settle()
        found = clock.read()
    assert found[Phase.CHECKPOINT] >= 60e6
    assert found[Phase.OPTIMIZER] >= 10e6
