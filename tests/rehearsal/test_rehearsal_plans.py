"""Every plan that ships, rehearsed whole: nothing fails, and it sends what was estimated."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.runtime.rehearsal.rehearse import rehearse
from tests.plans import PLANS, canonical_plans, checked

QUICK = (
    PLANS / "launch-dp2-cp2-tp2.plan",
    # A buffer of the whole model, without parameters of its own, is set by the initialization.
    PLANS / "starcoderbase-1b.plan",
)


def assert_rehearses(path: Path) -> None:
    found = checked(path)
    assert found.graph is not None and found.inventory is not None
    estimated = estimate(found.graph, found.inventory)
    stage = estimated.place.pp_rank if estimated.place else 0
    rehearsal = rehearse(found.graph, base=path.parent, measured_stage=stage)
    assert rehearsal.failures == ()
    assert rehearsal.measured is not None
    of_rank = estimated.ranks[stage] if estimated.place else estimated
    assert counted_collectives(rehearsal.measured) == predicted_collectives(of_rank)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("path", QUICK, ids=lambda path: path.stem)
def test_a_quick_plan_rehearses_as_estimated(path: Path) -> None:
    assert_rehearses(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in canonical_plans() if path not in QUICK], ids=lambda path: path.stem
)
def test_a_canonical_plan_rehearses_as_estimated(path: Path) -> None:
    assert_rehearses(path)
