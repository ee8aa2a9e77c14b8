"""What commands show at a terminal: lines that fit, colors, and of warnings a line outside `check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli.support.terminal import fitted
from tests.cli.terminal import at_terminal, plain
from tests.plans import PLANS, TINY, write_plan

PLAN = str(PLANS / "llama-3.1-8b-8-gpus.plan")
VIEWS = (
    ("estimate", PLAN),
    ("show", PLAN),
    ("show", PLAN, "--memory"),
    ("show", PLAN, "--collectives"),
    ("show", PLAN, "--mesh"),
    ("explain", "optimizer"),
    ("explain", "P714"),
    ("show", PLAN, "--origin"),
    ("doctor",),
    ("inventory", str(PLANS / "models" / "tiny-llama")),
    ("diff", "plans/launch-dp4.plan", "plans/launch-fsdp4.plan"),
    ("check", PLAN),
    ("explain",),
    ("verify", "--help"),
    ("checkpoint", "export", "--help"),
)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_no_line_is_longer_than_the_terminal(view: tuple[str, ...], columns: int) -> None:
    shown = plain(at_terminal(view, columns=columns))
    assert [line for line in shown.splitlines() if len(line.rstrip()) > columns] == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("view", [*VIEWS[:4], *VIEWS[5:10], VIEWS[11], VIEWS[12]], ids=" ".join)
def test_views_have_color_unless_it_is_declined(view: tuple[str, ...]) -> None:
    assert "\x1b[" in at_terminal(view, columns=100)
    assert "\x1b[3" not in at_terminal(view, columns=100, environment={"NO_COLOR": "1"})


def test_colors_take_no_room() -> None:
    line = "\033[33m  ~\033[0m name  4 -> 8  the bytes that every rank sends in a step"
    assert [plain(part) for part in fitted(line, width=42)] == [
        "  ~ name  4 -> 8  the bytes that every",
        "                  rank sends in a step",
    ]
    assert list(fitted(line, width=len(plain(line)))) == [line]


def test_a_last_column_continues_below_itself() -> None:
    line = "  loss  7.83 GiB  tensors of tokens and vocabulary in the backward pass"
    assert list(fitted(line, width=50)) == [
        "  loss  7.83 GiB  tensors of tokens and vocabulary",
        "                  in the backward pass",
    ]


def test_a_last_column_without_room_has_lines_of_its_own() -> None:
    line = "  weight_decay  a number from 0 up; default 0.01  decoupled weight decay of every parameter"
    assert list(fitted(line, width=60)) == [
        "  weight_decay  a number from 0 up; default 0.01",
        "      decoupled weight decay of every parameter",
    ]


def test_prose_continues_at_its_own_indent() -> None:
    assert list(fitted("one two three four five six seven", width=26)) == [
        "one two three four five",
        "six seven",
    ]


def test_a_plan_stays_a_plan_at_any_width() -> None:
    shown = plain(at_terminal(("show", PLAN, "--resolved"), columns=40))
    assert "sequence_length = " in shown and max(map(len, shown.splitlines())) > 40


def test_other_commands_give_a_warning_one_line(tmp_path: Path) -> None:
    in_16_bits = ('hf = "models/tiny-llama"\n', 'hf = "models/tiny-llama"\n  dtype = bfloat16\n')
    plan = str(write_plan(tmp_path, text=TINY, edits=[in_16_bits]))
    shown = plain(at_terminal(("check", plan), columns=100))
    assert shown.count("P714") == 2 and "help:" in shown
    for command in ("estimate", "show", "compile"):
        words = (command, plan) if command != "compile" else (command, plan, "-o", str(tmp_path / "x.json"))
        shown = plain(at_terminal(words, columns=200))
        lines = [line for line in shown.splitlines() if "P714" in line]
        assert len(lines) == 1 and "warning[P714]" in lines[0] and "help:" not in shown


def test_a_model_that_is_read_for_the_first_time_is_announced_once(tmp_path: Path) -> None:
    plan = str(write_plan(tmp_path, text=TINY, edits=[('"models/tiny-llama"', '"model"')]))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes((PLANS / "models/tiny-llama/config.json").read_bytes())
    cache = {"PLANC_CACHE": str(tmp_path / "cache")}
    first, second = (plain(at_terminal(("check", plan), columns=100, environment=cache)) for _ in range(2))
    assert "reading the structure of " in first and "plan_hash" in first
    assert "reading the structure" not in second


@pytest.mark.slow
def test_what_is_waited_for_is_beside_a_spinner_or_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((PLANS / "models/tiny-llama/config.json").read_bytes())

    def first_sight(**environment: str) -> str:
        words = ("inventory", str(tmp_path))
        cache = {"PLANC_CACHE": str(tmp_path / str(len(environment)))}
        return plain(at_terminal(words, columns=200, environment=cache | environment))

    assert any(turn in first_sight() for turn in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
    still = first_sight(TERM="dumb")
    assert still.startswith("planc: reading the structure of ")
    assert not any(turn in still for turn in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
