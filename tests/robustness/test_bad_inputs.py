"""Every bad plan is answered: where it is wrong and what to do, in little memory, touching nothing.

The commands run in one process that watches itself (`guarded.py`), each first for programs, then for people.
What each takes is in the table of `make bad-inputs`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.plan.pattern import Pattern, parse_pattern
from planc.source import Span
from planc.syntax.ast import Text
from tests.forked import run_forked
from tests.patience import PATIENCE_SECONDS
from tests.plans import PLANS, QUICKSTART
from tests.robustness.bad_inputs import CASES, Case
from tests.robustness.outcomes import Answer, answers, guarded, misconduct

SAYS_ITSELF = re.compile(
    r"expected |given twice|listed twice|only blocks|too large to store|at most|no .* under|no `"
)
"""Labels from which the remedy follows: the values that would do, or the other of two places."""

Answers = Mapping[str, Answer]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(tmp_path_factory.mktemp("cases"))


def test_a_command_that_writes_is_noticed(tmp_path: Path) -> None:
    plan = tmp_path / "x.plan"
    plan.write_text("mesh {tp=2}")
    (outcome,) = guarded([["fmt", str(plan)]])
    assert any("open" in wrong for wrong in misconduct(outcome))


def test_a_command_that_hangs_ends_no_other() -> None:
    quick, long = ["explain", "P100"], ["tune", str(PLANS / "llama-3.1-405b.plan"), "--gpus", "512"]
    one, hangs, two = guarded([quick, long, quick], hangs_after=0.1)
    assert (one.code, hangs.code, two.code) == (0, -signal.SIGPROF, 0)
    (said,) = misconduct(hangs)
    assert said.startswith("ended by SIGPROF: ") and "guarded.py" in said


def test_every_row_of_the_corpus_has_a_case() -> None:
    rows = {int(match[0]) for case in CASES if (match := re.match(r"\d+", case.row))}
    assert rows == set(range(1, 69))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_a_bad_plan_is_answered_with_a_place_and_a_remedy(case: Case, found: Answers) -> None:
    answer = found[case.row]
    assert answer.machine.code == answer.person.code == (case.exit_code if case.code else 0)
    assert bool(answer.errors) == bool(case.code)
    if case.code:
        fitting = answer.fitting(case)
        assert fitting, [(one["code"], one["line"], one["message"]) for one in answer.errors]
        one = fitting[0]
        assert one["column"] >= 1
        assert one["file"].endswith((".plan", "zero"))
        assert case.help in (one["help"] or "")
        assert case.label in one["text"]
        assert f"error[{case.code}]" in answer.person.out
        assert one["help"] or SAYS_ITSELF.search(one["text"]), one["text"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_a_bad_plan_is_answered_without_a_trace(case: Case, found: Answers) -> None:
    answer = found[case.row]
    assert [*misconduct(answer.machine), *misconduct(answer.person)] == []


def test_a_folder_without_plans_is_wrong_usage(tmp_path: Path) -> None:
    for outcome in guarded([["check", str(tmp_path)], ["check", str(tmp_path), "--output-format", "json"]]):
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == f"planc: error: no .plan file in `{tmp_path}`\n"


LONG = "x" * 300


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("fmt", LONG), "error[P100]"),
        (("diff", LONG, LONG), "error[P100]"),
        (("checkpoint", "ls", LONG), "planc: error: "),
        (("checkpoint", "verify", LONG), "planc: error: "),
        (("checkpoint", "diff", LONG, LONG), "planc: error: "),
        (("checkpoint", "export", LONG, "--hf", "x"), "planc: error: "),
    ],
    ids=lambda value: " ".join(value[:2]).replace(LONG, "x") if isinstance(value, tuple) else "",
)
def test_67_a_long_name_is_an_error_in_any_command(
    command: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(command)) == 2
    out, err = capsys.readouterr()
    assert expected in out + err
    assert "too long" in out + err
    assert "internal error" not in out + err


def test_67_a_long_name_is_an_error_of_a_run() -> None:
    """In a process of its own, since a run listens to its process's signals."""
    plan = QUICKSTART.with_name("launch-one-process.plan")
    done = run_forked("planc", ["run", str(plan), "--run-dir", LONG], environment=os.environ)
    assert done.code == 2
    assert done.stderr.startswith("planc: error: ") and "too long" in done.stderr


@pytest.mark.slow
def test_109_without_assertions_every_answer_is_the_same(
    found: Answers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    unasserted = answers(tmp_path_factory.mktemp("unasserted"), python=("-O",))
    for case in CASES:
        answer, same = unasserted[case.row], found[case.row]
        assert answer.machine.code == same.machine.code, case.row
        assert places(answer) == places(same), case.row


def places(answer: Answer) -> list[tuple[str, int, int]]:
    return [(one["code"], one["line"], one["column"]) for one in answer.errors]


def test_many_stars_over_fifty_thousand_names_are_quick() -> None:
    names = [f"model.layers.{number}.{'a' * 60}" for number in range(50_000)]
    pattern = parse_pattern(Text("**.*a*a*a*a*b", Span("x.plan", 1, 1, 1, 16)))
    assert isinstance(pattern, Pattern)
    started = time.process_time()
    assert pattern.select(names) == ()
    assert time.process_time() - started < PATIENCE_SECONDS
