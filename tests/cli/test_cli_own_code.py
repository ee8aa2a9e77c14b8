"""Commands that read a plan never run the code that it brings; the others say whose leave they need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import PLANS

CODE = """\
from pathlib import Path

from planc.extend import loss

Path(__file__).with_suffix(".ran").touch()


@loss("mine")
def mine(logits, labels):
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(PLANS / "models" / "tiny-llama", tmp_path / "models" / "tiny-llama")
    text = (PLANS / "quickstart.plan").read_text().replace("train {", "train {\n  loss = mine")
    (tmp_path / "own.plan").write_text(f'extension "code.py"\n{text}')
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own.plan"


@pytest.mark.parametrize(
    "command",
    [
        "check own.plan",
        "show own.plan --resolved",
        "show own.plan --graph text",
        "estimate own.plan",
        "diff own.plan own.plan",
        "fmt --check own.plan",
        "compile own.plan -o x.planc.json",
        "report own.plan -o x.html",
        "launch own.plan --nodes 1",
        "check own.plan --deep",
        "verify own.plan",
    ],
)
def test_a_command_that_reads_runs_no_code(
    command: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(command.split())
    printed = capsys.readouterr()
    assert not plan.with_name("code.ran").exists()
    needs_leave = "--deep" in command or command.startswith("verify")
    assert (code != 0) == needs_leave, printed.err
    if needs_leave:
        assert "`mine` is code" in printed.out + printed.err
        assert "add `--run-extensions`" in printed.out + printed.err


def test_a_check_that_needs_nothing_of_a_loss_runs_nothing(plan: Path) -> None:
    assert main(["check", "own.plan", "--run-extensions"]) == 0
    assert not plan.with_name("code.ran").exists()


def test_with_leave_a_deep_check_runs_it_and_prints_what_was_shown(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "own.plan", "--deep", "--run-extensions"]) == 0
    assert "the loss `mine` of code.py: each token's value depends on" in capsys.readouterr().out
    assert plan.with_name("code.ran").exists()


def test_code_that_imports_a_file_of_the_plan_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.with_name("other.py").write_text("x = 1\n")
    plan.with_name("code.py").write_text(f"import other\n{CODE}")
    assert main(["check", "own.plan", "--deep", "--run-extensions"]) == 1
    assert "imports `other`, a file of the plan's directory" in capsys.readouterr().out
    assert not plan.with_name("code.ran").exists()


def test_every_kind_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "extension"]) == 0
    printed = capsys.readouterr().out
    for heading in (
        "## loss: `train.loss`",
        "## optimizer: `optimizer.kind`",
        "## schedule: `optimizer.schedule`",
    ):
        assert heading in printed
