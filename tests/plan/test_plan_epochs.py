"""Epochs and shares of steps: how many steps they are, and when that is known."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.cli.main import main
from planc.cli.running.compiled import Compiled
from planc.diagnostics import Severity
from planc.graph.graph import UNKNOWN_STEPS
from planc.graph.ops import BuildSchedule
from planc.plan.scalars import MAX_INTEGER
from planc.plan.settle import in_steps
from planc.plan.shares import decimal
from planc.runtime.ranks.reads import describe, deviation, digest
from tests.plans import write_plan

PLAN = """\
model {
  hf = "models/tiny-llama"
}

data {
  source = jsonl("train.jsonl")
  sequence_length = 64
  micro_batch = 4
}

optimizer {
  kind = adamw(lr = 1e-3, weight_decay = 0.0)
  schedule = wsd(warmup = 3 %, decay = 12.5 %)
}

train {
  epochs = 3
}
"""


def checked(folder: Path, *edits: tuple[str, str], count: int | None = 100) -> Checked:
    found = check_plan(write_plan(folder, text=PLAN, edits=edits), count=lambda plan, base: count)
    assert found.ok, found.diagnostics
    return found


def lengths(found: Checked) -> tuple[int, int, int | None]:
    """The steps, the warm-up and the decay of the graph."""
    assert found.graph is not None
    schedule = next(op for op in found.graph.setup if isinstance(op, BuildSchedule))
    assert schedule.num_steps == found.graph.num_steps
    return found.graph.num_steps, schedule.warmup_steps, schedule.decay_steps


@pytest.mark.parametrize(
    ("epochs", "count", "steps"),
    [("3", 100, 75), ("3", 101, 76), ("2.5", 1_000, 625), ("0.1", 4_321, 109)],
)
def test_epochs_are_steps_once_the_sequences_are_counted(
    epochs: str, count: int, steps: int, tmp_path: Path
) -> None:
    assert steps == max(1, math.ceil(Fraction(epochs) * count / 4))
    found = lengths(checked(tmp_path, ("epochs = 3", f"epochs = {epochs}"), count=count))
    assert found == (steps, math.ceil(steps * Fraction(3, 100)), math.ceil(steps * Fraction(1, 8)))


def test_a_part_of_an_epoch_is_a_step_at_least(tmp_path: Path) -> None:
    edits = (("epochs = 3", "epochs = 0.01"), ("wsd(warmup = 3 %, decay = 12.5 %)", "cosine"))
    assert lengths(checked(tmp_path, *edits, count=100))[0] == 1


def test_a_step_of_several_sequences_takes_a_part_of_an_epoch(tmp_path: Path) -> None:
    edits = (("epochs = 3", "epochs = 3\n  tokens_per_step = 2_048"),)
    assert lengths(checked(tmp_path, *edits, count=100))[0] == 10


def test_a_share_needs_no_data_where_steps_are_given(tmp_path: Path) -> None:
    found = checked(tmp_path, ("epochs = 3", "steps = 1_000"), count=None)
    assert lengths(found) == (1_000, 30, 125)


def test_without_a_count_the_steps_are_unknown(tmp_path: Path) -> None:
    found = checked(tmp_path, count=None)
    assert lengths(found) == (UNKNOWN_STEPS, 0, 0)
    assert found.plan is not None and found.plan.train.steps is None


@pytest.mark.parametrize(
    ("share", "steps", "expected"), [("0.07", 100, 7), ("0.29", 100, 29), ("0.001", 10, 1)]
)
def test_shares_are_exact_and_rounded_up(share: str, steps: int, expected: int) -> None:
    """In floats 0.29 * 100 is 28.999999999999996, and 0.07 * 100 is 7.000000000000001."""
    assert in_steps(Fraction(share), steps) == expected


@pytest.mark.parametrize("text", ["0.7", "3", "0.0001", "12.50", "123456789.123456789", str(MAX_INTEGER)])
def test_numbers_are_written_as_they_were(text: str) -> None:
    assert Fraction(decimal(Fraction(text))) == Fraction(text)


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (("  epochs = 3\n", "  epochs = 3\n  steps = 5\n"), "P752"),
        (("  epochs = 3\n", "  epochs = none\n"), "P752"),
        (("  epochs = 3\n", ""), "P209"),
        (("epochs = 3", "epochs = 0"), "P206"),
        (("warmup = 3 %", "warmup = 100 %"), "P206"),
        (("warmup = 3 %", "warmup = 3"), "P208"),
    ],
)
def test_lengths_that_are_none_are_refused(edit: tuple[str, str], code: str, tmp_path: Path) -> None:
    found = check_plan(write_plan(tmp_path, text=PLAN, edits=[edit]), count=lambda plan, base: 100)
    errors = [one.code.code for one in found.diagnostics if one.severity is Severity.ERROR]
    assert errors == [code]


def test_check_counts_small_data_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (json.dumps({"text": "x" * 639}) for _ in range(10))
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    path = write_plan(tmp_path, text=PLAN)
    assert main(["check", str(path)]) == 0
    # Ten documents of 640 tokens end to end, without the last one: 99 sequences of 64.
    length = "75 steps, 19_200 tokens: 3 epochs of 99 sequences, 6_336 tokens; warmup of 3 steps"
    assert length in capsys.readouterr().out
    monkeypatch.setattr("planc.runtime.data.prepared.wanted.MAX_BYTES_OF_BYTES", 100)
    monkeypatch.setenv("PLANC_DATA", str(tmp_path / "prepared"))
    assert main(["check", str(path)]) == 0
    assert "3 epochs, steps and warmup known after `planc data prepare`" in capsys.readouterr().out
    assert main(["compile", str(path), "-o", str(tmp_path / "x.json")]) == 2
    assert "planc data prepare" in capsys.readouterr().err
    assert main(["data", "prepare", str(path), "--quiet"]) == 0
    assert main(["check", str(path)]) == 0
    assert length in capsys.readouterr().out


def test_machines_that_count_other_sequences_are_refused_with_both_numbers(tmp_path: Path) -> None:
    """Each machine computes the steps of a plan from its own data."""
    entries = []
    for count in (100, 90):
        graph = checked(tmp_path, count=count).graph
        assert graph is not None
        entries.append(Compiled(graph, tmp_path, (), ()).reads().take())
    assert digest(entries[0]) != digest(entries[1])
    text, help = describe([deviation(1, "b", entries[1], entries[0])], world_size=2)
    assert "the number of sequences in an epoch is 90 on rank 1 (b), and 100 on the other rank" in text
    assert "run `planc data prepare` on each" in help
