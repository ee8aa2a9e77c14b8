"""Parts of plans as text read as what they were written from."""

from __future__ import annotations

import math
import random
import struct

import pytest

from planc.source import SourceFile
from planc.syntax import ast
from planc.syntax.parse import read
from planc.syntax.write import block, call, number, quoted, rule


def value_of(text: str) -> ast.Value:
    """The value that a plan's text has."""
    file = read(SourceFile("x.plan", block("train", [f"x = {text}"]))).file
    assert file is not None
    (train,) = file.statements
    assert isinstance(train, ast.Block)
    (setting,) = train.body
    assert isinstance(setting, ast.Setting)
    return setting.value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"),
        (1.2345e-4, "1.2345e-4"),
        (1.23456789012345e-7, "1.23456789012345e-7"),
        (1e-8, "1e-8"),
        (0.001, "0.001"),
        (0.1, "0.1"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (10_000.0, "1e4"),
        (-2.5e-5, "-2.5e-5"),
        (1e22, "1e22"),
    ],
)
def test_a_float_is_written_as_people_do(value: float, text: str) -> None:
    assert number(value) == text


def test_every_float_reads_as_itself() -> None:
    draw = random.Random(0)
    bits = (struct.unpack("<d", draw.randbytes(8))[0] for _ in range(2000))
    for value in (one for one in bits if math.isfinite(one)):
        assert float(number(value)) == value


@pytest.mark.parametrize("value", [3e-4, 1.2345e-4, 1e-8, 0.1, 2.5, 123_456.75, 1e22])
def test_a_plan_reads_the_float_that_was_written(value: float) -> None:
    found = value_of(number(value))
    assert isinstance(found, ast.Number)
    assert found.value == value


def test_calls_and_rules_are_as_a_plan_has_them() -> None:
    assert call("constant", []) == "constant"
    assert (
        call("cosine", ["warmup = 1 steps", "min_factor = 0.1"])
        == "cosine(warmup = 1 steps, min_factor = 0.1)"
    )
    assert rule(["a.*"], "unit") == '"a.*" -> unit'
    assert rule(["a", "b"], "unit") == '["a", "b"] -> unit'
    assert value_of(quoted("data/*.txt")) == ast.Text("data/*.txt", value_of(quoted("data/*.txt")).span)
