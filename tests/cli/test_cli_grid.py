"""The points of `planc sweep --grid`."""

from __future__ import annotations

import pytest

from planc.cli.commands.sweep import points
from planc.cli.support.exits import UsageError


def test_the_points_are_every_combination_the_last_axis_fastest() -> None:
    found = points(["optimizer.lr=1e-4,3e-4", "model.seed=0..2"])
    assert [point.settings for point in found] == [
        (f"optimizer.lr={lr}", f"model.seed={seed}") for lr in ("1e-4", "3e-4") for seed in (0, 1, 2)
    ]
    assert found[0].name == "lr=1e-4,seed=0" and len({point.name for point in found}) == 6


def test_commas_in_brackets_and_texts_part_nothing() -> None:
    found = points(["optimizer.kind=adamw(lr = 1e-3, eps = 1e-8),sgd(lr = 0.1)", 'data.source=text("a,b")'])
    assert [point.settings[0].partition("=")[2] for point in found] == [
        "adamw(lr = 1e-3, eps = 1e-8)",
        "sgd(lr = 0.1)",
    ]
    assert all("/" not in point.name and " " not in point.name for point in found)


def test_a_range_may_begin_below_zero_and_is_of_integers_only() -> None:
    assert [point.settings for point in points(["a=-1..1"])] == [("a=-1",), ("a=0",), ("a=1",)]
    assert [point.settings for point in points(["a=1e-4..1"])] == [("a=1e-4..1",)]


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        (["lr"], "write PATH=VALUE"),
        (["lr="], "write PATH=VALUE"),
        (["=1"], "write PATH=VALUE"),
        (["a=1,,2"], "a value is empty"),
        (["a=2..1"], "must go up"),
        (["a=0..99999"], "at most 10000"),
        (["a=0..200", "b=0..200"], "more than 10000 points"),
        (["a=1", "a=2"], "a twice"),
        (['a="x y","x_y"'], "would have the directory"),
    ],
)
def test_a_wrong_axis_is_refused(axes: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        points(axes)
