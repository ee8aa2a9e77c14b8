"""When a unit of a pipeline's stage is gathered and freed."""

from __future__ import annotations

import pytest

from planc.graph.pipeline import StageUnit, stage_holding
from planc.pipelining.order_text import parse_order
from planc.pipelining.orders import Order

ORDER = parse_order("0F0 0F1 0B0 0F2 0B1 0B2")
TWO_STAGES = parse_order("0F0 0F1 2F0 2B0 2F1 0B0 2B1 0B1")
WEIGHTS_APART = parse_order("0F0 0B0 0F1 0W0 0B1 0W1")


@pytest.mark.parametrize(
    ("text", "stage", "reshards", "expected"),
    [
        (ORDER, 0, True, "0F0-0F0 0F1-0F1 0B0-0B0 0F2-0F2 0B1-0B1 0B2-0B2"),
        # Kept from forward to backward, whichever backward comes first.
        (ORDER, 0, False, "0F0-0B0 0F2-0B1 0B2-0B2"),
        # The backward of the rank's other stage frees it too.
        (TWO_STAGES, 0, False, "0F0-2B0 0B0-0B0 0B1-0B1"),
        (TWO_STAGES, 2, False, "2F0-2B0 2F1-0B0 2B1-2B1"),
        # Gradients of weights read no weight.
        (WEIGHTS_APART, 0, False, "0F0-0B0 0F1-0B1"),
        (parse_order("0F0 0F1"), 0, False, "0F0-0F1"),
    ],
)
def test_a_unit_is_gathered_from_its_use_until_it_is_freed(
    text: Order, stage: int, reshards: bool, expected: str
) -> None:
    unit = StageUnit(("model.layers.0",), stage, reshards, True)
    assert " ".join(f"{stay.first}-{stay.last}" for stay in unit.stays(text)) == expected


@pytest.mark.parametrize(
    ("text", "stage", "expected"),
    [
        (ORDER, 0, "0F0-0B2"),
        (TWO_STAGES, 0, "0F0-0B1"),
        (TWO_STAGES, 2, "2F0-2B1"),
        (WEIGHTS_APART, 0, "0F0-0B1"),
    ],
)
def test_a_unit_that_stays_whole_is_gathered_once(text: Order, stage: int, expected: str) -> None:
    """The backwards of the rank's other stages leave it."""
    (stay,) = StageUnit(("model.layers.0",), stage, False, False).stays(text)
    assert f"{stay.first}-{stay.last}" == expected


def test_a_unit_is_in_the_stage_of_what_is_around_it() -> None:
    stages = (("embed", "layers.1"), ("layers.10",))
    assert [stage_holding((name,), stages) for name in ("layers.1.mlp", "layers.10", "layers.2", "")] == [
        0,
        1,
        None,
        None,
    ]
