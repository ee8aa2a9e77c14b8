"""A usual step waits for the device once, and a wait that is planted in it is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planc.graph.op import Op
from planc.graph.ops import NextBatch, StepOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.observer import SaveTimes, StepMetrics
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.training.step_loss import StepLoss
from planc.verify.pool import run_ranks
from planc.verify.ranks import Metrics, Task, train_rank
from tests.bench.fake_device import DEVICE, FakeDevice
from tests.bench.syncs import CASES, GOAL, Case, task_of, train, waits, waits_of_rank

QUICK = CASES[0]


def test_every_usual_step_waits_once(tmp_path: Path) -> None:
    (found,) = waits(QUICK, tmp_path)
    assert len(found) == GOAL
    assert found[0].where.startswith("planc/runtime/torch/training/step_read.py")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
def test_every_usual_step_of_several_ranks_waits_once(case: Case, tmp_path: Path) -> None:
    assert [len(found) for found in waits(case, tmp_path)] == [GOAL, GOAL]


def look(state: State, op: Op, position: Position) -> None:
    """Read a number that nobody needs."""
    if isinstance(op, StepOptimizer):
        state[StepLoss].total.item()


def test_a_planted_read_is_listed_with_its_line(tmp_path: Path) -> None:
    (found,) = waits(QUICK, tmp_path, before_op=look)
    assert len(found) == GOAL + 1
    assert found[1].what == "a number is read (_local_scalar_dense)"
    assert found[1].where.startswith("tests/bench/test_syncs.py") and "item()" in found[1].where


def without_times(steps: list[StepMetrics]) -> list[StepMetrics]:
    return [
        replace(
            one,
            seconds=0.0,
            tokens_per_second=0.0,
            tokens_per_second_per_device=0.0,
            memory_bytes=0,
            phase_seconds={},
            sample_ids=(),
        )
        for one in steps
    ]


@pytest.mark.parametrize(
    "case", [QUICK, *(pytest.param(case, marks=pytest.mark.slow, id=case.name) for case in CASES[1:])]
)
def test_a_device_with_a_queue_logs_the_numbers_of_one_without(case: Case, tmp_path: Path) -> None:
    """It clips by multiplying on the device, and writes a line when the next step has begun."""
    task = task_of(case, tmp_path)
    queued = run_ranks(waits_of_rank, task.graph.world_size, task, None, init=False)
    usual = run_ranks(train_rank, task.graph.world_size, task, init=False)
    for (_, steps), record in zip(queued, usual, strict=True):
        assert [one.step for one in steps] == [1, 2, 3, 4]
        assert without_times(steps) == without_times(record.metrics)
        assert max(one.grad_norm for one in steps) > 1.0, "nothing was clipped"


class Order(Metrics):
    """What a run reports, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[str] = []

    def stepped(self, metrics: StepMetrics) -> None:
        self.reports.append(f"line {metrics.step}")

    def saved(self, directory: Path, *, behind: SaveTimes | None = None) -> None:
        self.reports.append(f"saved {directory.name}")


def reports_of_rank(rank: int, world_size: int, task: Task) -> list[str]:
    order = Order()

    def count(state: State, op: Op, position: Position) -> None:
        if isinstance(op, NextBatch):
            order.reports.append(f"step {position.step}")

    train(task, order, before_op=count)
    return order.reports


@pytest.mark.slow
def test_a_line_waits_for_the_next_steps_read_or_for_a_save(tmp_path: Path) -> None:
    saves = "checkpoint {\n  save_every = 2 steps\n}\n"
    case = replace(CASES[2], parallel=saves)
    first, _ = run_ranks(reports_of_rank, 2, task_of(case, tmp_path), init=False)
    assert first == [
        *("step 1", "step 2", "line 1", "line 2", "saved step-2"),
        *("step 3", "step 4", "line 3", "line 4", "saved step-4"),
    ]


NUMBERS: list[Callable[[Tensor], object]] = [
    lambda here: here.tolist(),
    lambda here: here.cpu(),
    lambda here: here.to("cpu"),
    lambda here: here.numpy(),
    lambda here: bool(here.any()),
    lambda here: float(here.sum()),
    lambda here: here.nonzero(),
    lambda here: here[here > 1],
    lambda here: torch.equal(here, here),
    lambda here: here.add_(torch.ones(3).to(DEVICE)),
    lambda here: here.copy_(torch.ones(3)),
    lambda here: here.copy_(torch.ones(3), non_blocking=True),
    lambda here: torch.tensor(1.0, device=DEVICE),
    lambda here: torch.ones(3).copy_(here),
    lambda here: torch.cuda.synchronize(),
    lambda here: torch.cuda.Event().synchronize(),
]
"""Calls that wait for the device of a tensor."""

FREE: list[Callable[[Tensor], object]] = [
    lambda here: here.add_(1).sum() * here.to(DEVICE),
    lambda here: here.to(here.device),
    lambda here: torch.full((3,), 2.0, device=DEVICE),
    lambda here: torch.ones(3).pin_memory().to(DEVICE, non_blocking=True),
    lambda here: torch.empty(3, pin_memory=True).copy_(here, non_blocking=True),
    lambda here: here.masked_fill_(here > 1, 0.0),
    lambda here: torch.where(here > 1, here, 0.0),
    lambda here: torch.ones(3).tolist(),
    lambda here: torch.ones(3).to(torch.float64).sum().item(),
    lambda here: torch.cuda.Event().query(),
]
"""Calls that don't."""


@pytest.mark.parametrize(("calls", "expected"), [(NUMBERS, 1), (FREE, 0)], ids=["waits", "does not wait"])
def test_what_waits_is_known(calls: list[Callable[[Tensor], object]], expected: int) -> None:
    for number, call in enumerate(calls):
        device = FakeDevice()
        with device.entered():
            here = torch.zeros(3, device=DEVICE)
            device.is_listing = True
            call(here)
        assert len(device.waits) == expected, number
