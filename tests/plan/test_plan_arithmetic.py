"""Arithmetic in values: exact, with units, over parameters; and the words of a plan's length."""

from __future__ import annotations

from typing import Any

import pytest

from planc.fmt.format import format_source
from planc.plan.checkpoint import CheckpointSpec
from planc.plan.resolve import resolve
from planc.plan.spec import Plan
from planc.plan.train import TrainSpec
from planc.source import SourceFile
from planc.syntax.parse import parse

BASE = """param n: int = 4
param share: float = 0.5
param name: string = "x"
model {
  hf = name
}
data {
  source = python_stdlib
  sequence_length = 8 * n
  micro_batch = 1
}
optimizer {
  kind = adamw(lr = 1e-3 * share / 3)
}
"""


def resolved(text: str) -> tuple[Plan | None, list[tuple[str, str]]]:
    file, problems = parse(SourceFile("x.plan", BASE + text))
    assert file is not None, problems
    plan, found = resolve(file)
    return plan, [(one.code.code, one.primary.text) for one in found]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("steps = 2 + 3 * n", 14),
        ("steps = (2 + 3) * n - 1", 19),
        ("steps = 7 - 2 - 1", 4),
        ("steps = 12 / n / 3", 1),
        ("steps = 3 / 2 * n", 6),
        ("steps = n-1", 3),
        ("steps = 10 % * 50", 5),
        ("steps = 0.1 * 3 * 10", 3),
    ],
)
def test_arithmetic_gives_the_exact_number(text: str, value: int) -> None:
    plan, found = resolved(f"train {{ {text} }}")
    assert plan is not None, found
    assert plan.train.steps == value
    assert plan.optimizer.kind.lr == pytest.approx(1e-3 / 6, rel=1e-15)  # type: ignore[union-attr]
    assert plan.data.sequence_length == 32


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("steps = 2 epochs", (None, 2, None)),
        ("steps = n * 0.5 epochs", (None, 2, None)),
        ("steps = 1, tokens_per_step = 4M", (1, None, 4_000_000)),
        ("steps = 1, tokens_per_step = 1.5 Mi / 2", (1, None, 786_432)),
        ("steps = 1, tokens_per_step = 512", (1, None, 512)),
    ],
)
def test_a_length_is_written_in_epochs_and_tokens_in_millions(train: str, expected: Any) -> None:
    plan, found = resolved(f"train {{ {train} }}")
    assert plan is not None, found
    assert (plan.train.steps, plan.train.epochs, plan.train.tokens_per_step) == expected


@pytest.mark.parametrize(
    ("text", "code", "label"),
    [
        ("train { steps = n / 0 }", "P206", "a division by zero"),
        ("train { steps = n * name }", "P205", "`name` is not a number"),
        ("train { steps = m * 2 }", "P205", "`m` is not a number"),
        ("train { steps = 7 / 2 }", "P205", "expected an integer from 1 up, found `7/2`"),
        ("train { steps = 1, log_every = 2 steps + 1 }", "P208", "`+` of `steps` and a plain number"),
        ("train { steps = 1, log_every = 2 steps * 2 steps }", "P208", "`steps` can't be an operand"),
        ("train { steps = 1, log_every = 3 steps / 2 }", "P206", "expected a whole number"),
        ("train { steps = 1, tokens_per_step = 1 K / 3 }", "P205", "expected an integer"),
        ("train { epochs = 1, steps = 2 epochs }", "P204", "a second number of epochs"),
        ("train { steps = 2 epochs }\nexpect { peak_memory < 2 GiB + 1 }", "P208", "`+` of `GiB`"),
        ('extnds "x"\ntrain { steps = 1 }', "P201", "no block `extnds`"),
    ],
)
def test_arithmetic_without_a_result_is_one_error(text: str, code: str, label: str) -> None:
    plan, found = resolved(text)
    assert plan is None
    assert [one for one, _ in found] == [code], found
    assert found[0][1].startswith(label)


def test_units_of_one_kind_add_up_in_settings_and_expectations() -> None:
    text = """train { steps = 1 }
checkpoint { save_every = 2 * 50 steps + 1 step }
expect { peak_memory < 2 * 8 GiB - 512 MiB, total_tokens < 1 B, tokens_per_step == 32 * n }
"""
    plan, found = resolved(text)
    assert plan is not None, found
    assert isinstance(plan.checkpoint, CheckpointSpec)
    assert plan.checkpoint.save_every == 101
    assert [one.value for one in plan.expectations] == [16 * 2**30 - 512 * 2**20, 10**9, 128]


def test_a_path_without_quotes_is_told_to_have_them() -> None:
    file, _ = parse(SourceFile("x.plan", BASE.replace("= name", "= models/tiny-llama")))
    assert file is not None
    found = [one for one in resolve(file)[1] if one.code.code == "P205"]
    assert [one.help for one in found] == ['write a path in quotes: `"models/tiny-llama"`']


def test_the_formatter_keeps_what_arithmetic_means() -> None:
    text = 'a {\n  b = (1+n)*2 -(3-4)/ (5*c)\n  tracker "wandb" {}\n  c = f(x*2,[y-1])\n}\n'
    formatted, problems = format_source(SourceFile("x.plan", text))
    assert not problems
    assert formatted == (
        'a {\n  b = (1 + n) * 2 - (3 - 4) / (5 * c)\n  tracker "wandb"\n  c = f(x * 2, [y - 1])\n}\n'
    )


def test_a_long_sum_is_no_deep_tree() -> None:
    plan, found = resolved(f"train {{ steps = {' + '.join(['1'] * 15_000)} }}")
    assert plan is not None, found
    assert isinstance(plan.train, TrainSpec)
    assert plan.train.steps == 15_000
