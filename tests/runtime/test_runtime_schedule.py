"""The learning rate over the steps, against torch's own schedulers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from planc.graph.ops import BuildSchedule
from planc.runtime.schedule import learning_rate_factor

NUM_STEPS = 20


def schedule(
    kind: str,
    *,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    min_factor: float = 0.0,
    num_steps: int = NUM_STEPS,
) -> BuildSchedule:
    return BuildSchedule(
        kind=kind,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        min_factor=min_factor,
        num_steps=num_steps,
    )


def factors(of: BuildSchedule) -> list[float]:
    """The factor of each step, from step 1."""
    return [learning_rate_factor(of, step=step) for step in range(1, of.num_steps + 1)]


def torch_factors(kind: str, *, warmup_steps: int, min_factor: float) -> list[float]:
    """The rates that torch's schedulers give an optimizer with learning rate 1."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    decay_steps = NUM_STEPS - warmup_steps
    warmup = LinearLR(optimizer, start_factor=1 / warmup_steps, total_iters=warmup_steps - 1)
    decay: LRScheduler
    if kind == "cosine":
        decay = CosineAnnealingLR(optimizer, T_max=decay_steps, eta_min=min_factor)
    else:
        decay = LinearLR(optimizer, start_factor=1.0, end_factor=min_factor, total_iters=decay_steps)
    scheduler = SequentialLR(optimizer, [warmup, decay], milestones=[warmup_steps])
    found = []
    for _ in range(NUM_STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("warmup_steps", [2, 5, 19])
@pytest.mark.parametrize("min_factor", [0.0, 0.1, 1.0])
def test_warmup_and_decay_are_those_of_torch(kind: str, warmup_steps: int, min_factor: float) -> None:
    expected = torch_factors(kind, warmup_steps=warmup_steps, min_factor=min_factor)
    found = factors(schedule(kind, warmup_steps=warmup_steps, min_factor=min_factor))
    assert found == pytest.approx(expected, abs=1e-12)


def test_warmup_rises_by_equal_parts_to_the_peak() -> None:
    assert factors(schedule("constant", warmup_steps=4))[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_constant_without_warmup_is_the_peak_from_the_first_step() -> None:
    assert factors(schedule("constant")) == [1.0] * NUM_STEPS


def test_wsd_rises_stays_and_falls_over_its_last_steps() -> None:
    found = factors(schedule("wsd", warmup_steps=2, decay_steps=4, min_factor=0.2, num_steps=10))
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4])


def test_wsd_without_a_plateau_is_linear() -> None:
    wsd = factors(schedule("wsd", warmup_steps=4, decay_steps=NUM_STEPS - 4, min_factor=0.1))
    assert wsd == factors(schedule("linear", warmup_steps=4, min_factor=0.1))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_decay_ends_one_step_after_the_last(kind: str) -> None:
    of = schedule(kind, warmup_steps=3, min_factor=0.1)
    assert min(factors(of)[3:]) == factors(of)[-1] > 0.1
    assert math.isclose(learning_rate_factor(of, step=NUM_STEPS + 1), 0.1)


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 50])
def test_no_step_has_a_rate_of_zero(kind: str, num_steps: int) -> None:
    decay_steps = num_steps if kind == "wsd" else None
    assert min(factors(schedule(kind, num_steps=num_steps, decay_steps=decay_steps))) > 0


@pytest.mark.parametrize(("kind", "factor"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0)])
def test_steps_after_the_end_of_the_decay_keep_its_factor(kind: str, factor: float) -> None:
    of = schedule(kind, warmup_steps=3, min_factor=0.1)
    for step in (NUM_STEPS + 1, NUM_STEPS + 7):
        assert math.isclose(learning_rate_factor(of, step=step), factor)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_warmup_as_long_as_the_run_never_decays(kind: str) -> None:
    assert factors(schedule(kind, warmup_steps=NUM_STEPS))[-1] == 1.0


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_a_run_of_one_step_has_a_rate(kind: str) -> None:
    assert factors(schedule(kind, min_factor=0.5, num_steps=1)) == [1.0]
