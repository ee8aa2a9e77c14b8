"""The closed form and the rehearsal, which know nothing of each other, name the same peaks."""

from __future__ import annotations

import pytest

from tests.estimate.against_rehearsal import PLAN_NAMES, QUICK, SLOW, Compared, Variant, compare, compare_plan

HELD = 0.001
FSDP_ALONE, DIVIDED = 0.01, 0.03


def assert_agrees(found: Compared) -> None:
    assert found.measured_states == found.state_blocks
    assert abs(found.held_error) <= HELD
    assert abs(found.error) <= (FSDP_ALONE if found.is_fsdp_alone else DIVIDED)


@pytest.mark.parametrize("variant", QUICK, ids=lambda variant: variant.name)
def test_the_closed_form_is_what_is_rehearsed(variant: Variant) -> None:
    assert_agrees(compare(variant))


@pytest.mark.slow
@pytest.mark.parametrize("variant", SLOW, ids=lambda variant: variant.name)
def test_more_meshes_hold_what_is_estimated(variant: Variant) -> None:
    assert_agrees(compare(variant))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAN_NAMES)
def test_canonical_plans_hold_what_is_estimated(name: str) -> None:
    found = compare_plan(name)
    assert abs(found.held_error) <= HELD
    assert abs(found.error) <= DIVIDED
