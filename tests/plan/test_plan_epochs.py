"""Epochs and other units where planc counts steps or plain numbers, and numbers beyond the range."""

from __future__ import annotations

import pytest

from planc.api import check_source
from planc.plan.epochs import EPOCH, EPOCH_HELP
from planc.plan.scalars import MAX_INTEGER
from planc.source import SourceFile
from tests.plan.resolving import edited, fault
from tests.plans import PLANS

STEPS = "steps = 60\n"
LENGTH = "sequence_length = 256"


@pytest.mark.parametrize("unit", [" epoch", "epoch", " epochs", " Epochs"])
@pytest.mark.parametrize("key", [STEPS, "micro_batch = 4", "tokens_per_step = 4096"])
def test_a_number_of_epochs_is_told_what_planc_counts(key: str, unit: str) -> None:
    name = key.partition(" = ")[0]
    assert fault(edited((key, f"{name} = 1{unit}\n"))).help == EPOCH_HELP


def test_an_interval_of_epochs_is_told_what_planc_counts() -> None:
    assert fault(edited((STEPS, f"{STEPS}  log_every = 1 epoch\n"))).help == EPOCH_HELP


@pytest.mark.parametrize("word", ["epochs", "num_train_epochs", "max_epochs"])
def test_a_key_for_epochs_has_the_formula(word: str) -> None:
    help = str(fault(edited((STEPS, f"{STEPS}  {word} = 3\n"))).help)
    assert help == f"planc counts steps, not epochs: write `steps = 1000`; {EPOCH}"


@pytest.mark.parametrize("unit", ["h", "min", "s", "GiB", "B"])
def test_a_time_or_a_size_is_not_just_stripped_of_its_unit(unit: str) -> None:
    help = str(fault(edited((STEPS, f"steps = 3 {unit}\n"))).help)
    assert "write `3`" not in help and "neither a time nor a size" in help


def test_a_number_of_steps_is_stripped_of_its_unit() -> None:
    assert fault(edited((STEPS, "steps = 60 steps\n"))).help == "write `60`"


@pytest.mark.parametrize("digits", [20, 30])
def test_a_number_too_large_to_store_has_the_range_of_its_key(digits: int) -> None:
    found = fault(edited((LENGTH, f"sequence_length = {'9' * digits}")))
    assert found.primary.text == "expected an integer from 1 to 16777216"


def test_a_number_of_too_many_digits_has_the_range_of_integers() -> None:
    text = edited((LENGTH, f"sequence_length = {'9' * 41}"))
    (found,) = check_source(SourceFile("x.plan", text), base=PLANS).diagnostics
    assert found.code.code == "P107"
    assert f"{MAX_INTEGER:_}" in str(found.help)
