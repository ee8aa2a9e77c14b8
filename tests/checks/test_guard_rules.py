"""Guards that never look, and the step in which they do: what the pages' examples do not show."""

from __future__ import annotations

import pytest
from variants import Check

from planc.graph.ops import GuardStep, StepOptimizer
from tests.plans import FULL


def guard(*lines: str) -> str:
    return "\n".join(("\nguard {", *(f"  {line}" for line in lines), "}\n"))


@pytest.mark.parametrize(
    ("line", "code", "label"),
    [
        ("loss_spike = stop(window = 60 steps)", "P742", "compares a loss with the 60 steps before it"),
        ("replicas_every = 61 steps", "P742", "compares replicas every 61 steps"),
    ],
)
def test_what_would_come_after_the_training_is_told(check: Check, line: str, code: str, label: str) -> None:
    (found,) = check(FULL + guard(line)).diagnostics
    assert (found.code.code, found.primary.text) == (code, label)


@pytest.mark.parametrize("line", ["loss_spike = stop(window = 59 steps)", "replicas_every = 60 steps"])
def test_the_last_step_can_be_looked_at(check: Check, line: str) -> None:
    assert check(FULL + guard(line)).diagnostics == ()


def test_under_tensor_parallelism_norms_have_copies(check: Check) -> None:
    assert check(FULL + guard("replicas_every = 10 steps")).diagnostics == ()


def test_a_guard_that_asks_for_nothing_more_leaves_the_graph_as_it_is(check: Check) -> None:
    assert check(FULL + guard("nonfinite = stop")).graph == check(FULL).graph


def test_the_guard_stands_between_the_loss_and_the_optimizer(check: Check) -> None:
    graph = check(FULL + guard("nonfinite = skip")).graph
    assert graph is not None
    names = [op.name for op in graph.step]
    start = names.index("metrics.reduce")
    assert names[start : start + 3] == ["metrics.reduce", "step.guard", "optimizer.step"]
    assert [type(op) for op in graph.step[start + 1 : start + 3]] == [GuardStep, StepOptimizer]


def test_a_spike_takes_at_least_five_losses(check: Check) -> None:
    found = check(FULL + guard("loss_spike = skip(window = 4 steps)"))
    assert not found.ok
