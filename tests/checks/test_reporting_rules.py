"""Steps to profile and memory snapshots: what the pages' examples do not show."""

from __future__ import annotations

import pytest
from variants import Check

from tests.plans import FULL

ON_PROCESSORS = FULL.replace("mesh {", "mesh {\n  backend = gloo", 1)


def profile(first: int, last: int, *, memory: str = "false") -> str:
    return f"\nprofile {{\n  first_step = {first}\n  last_step = {last}\n  memory = {memory}\n}}\n"


@pytest.mark.parametrize(
    ("first", "last", "label", "help"),
    [
        (5, 4, "step 4 is before `first_step`", "at least 5"),
        (59, 61, "step 61 is after the end", "at most 60"),
        (70, 61, "step 61 is before `first_step`", "at least 70"),
    ],
)
def test_steps_that_never_come_are_told_once(
    check: Check, first: int, last: int, label: str, help: str
) -> None:
    (found,) = check(FULL + profile(first, last)).diagnostics
    assert (found.code.code, found.primary.text) == ("P740", label)
    assert help in (found.help or "")


@pytest.mark.parametrize(("first", "last"), [(1, 1), (60, 60), (1, 60)])
def test_every_step_of_the_training_can_be_profiled(check: Check, first: int, last: int) -> None:
    assert check(FULL + profile(first, last)).diagnostics == ()


def test_a_snapshot_is_refused_where_the_plan_says_gloo(check: Check) -> None:
    (found,) = check(ON_PROCESSORS + profile(1, 2, memory="true")).diagnostics
    assert found.code.code == "P741"
    assert [label.text for label in found.secondary] == ["gloo runs on CPUs"]


def test_a_snapshot_is_left_to_the_start_where_the_plan_leaves_the_device_open(check: Check) -> None:
    assert check(FULL + profile(1, 2, memory="true")).diagnostics == ()
