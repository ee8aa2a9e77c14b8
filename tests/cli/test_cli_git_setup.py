"""`planc git-setup` in real repositories, and what git shows of a changed plan afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.git_setup import ATTRIBUTE
from planc.cli.main import main
from tests.plans import PLANS, QUICKSTART

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one committed plan, an owner without configuration, and `planc` on the path."""
    home, folder, tools = tmp_path / "home", tmp_path / "repository", tmp_path / "bin"
    for made in (home, folder / "plans", tools):
        made.mkdir(parents=True)
    command = tools / "planc"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m planc "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.chdir(folder)
    (folder / "plans" / "models").symlink_to(PLANS / "models")
    (folder / "plans" / "x.plan").write_text(QUICKSTART.read_text())
    git("init", "-q", "-b", "main")
    git("add", "plans/x.plan")
    git("commit", "-qm", "a plan")
    return folder


def edit(folder: Path) -> None:
    plan = folder / "plans" / "x.plan"
    text = (
        plan.read_text().replace("micro_batch = 4", "micro_batch = 2").replace("steps = 120", "steps = 240")
    )
    plan.write_text(text.replace("  gradient_accumulation == 2\n", "  gradient_accumulation == 4\n"))


def test_git_shows_what_block_a_change_is_in_and_what_it_means(
    repository: Path, match_golden: Callable[[Path, str], None]
) -> None:
    assert main(["git-setup"]) == 0
    edit(repository)
    shown = "".join(
        f"$ {command}\n{git(*command.split()[1:])}\n"
        for command in ("git diff -U1 -- plans/x.plan", "git difftool --no-prompt -t planc -- plans/x.plan")
    )
    without_ids = "".join(line for line in shown.splitlines(keepends=True) if not line.startswith("index "))
    match_golden(Path(__file__).parents[1] / "review" / "git.txt", without_ids)


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ('  "model.layers.*.self_attn.o_proj" -> rowwise', "tensor_parallel on tp"),
        ("  replicate_on = dp_replicate", "fsdp on dp_shard, cp"),
    ],
)
def test_hunk_heads_say_which_mesh_dims_a_block_is_on(repository: Path, line: str, head: str) -> None:
    assert main(["git-setup"]) == 0
    plan = repository / "plans" / "x.plan"
    plan.write_text(plan.read_text().replace(line, f"  # a word\n{line}"))
    assert f"@@ {head}\n" in git("diff", "-U0")


def test_difftool_works_from_a_folder_of_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["git-setup"]) == 0
    edit(repository)
    monkeypatch.chdir(repository / "plans")
    assert "train.steps  120 -> 240" in git("difftool", "--no-prompt", "-t", "planc", "HEAD")


def test_difftool_says_that_a_plan_is_new(repository: Path) -> None:
    assert main(["git-setup"]) == 0
    (repository / "plans" / "y.plan").write_text(QUICKSTART.read_text())
    git("add", "plans/y.plan")
    shown = git("difftool", "--no-prompt", "-t", "planc", "--cached")
    assert "planc diff  plans/y.plan  is new" in shown


def test_difftool_says_what_it_cannot_know_of_an_old_plan_of_several_files(repository: Path) -> None:
    assert main(["git-setup"]) == 0
    (repository / "plans" / "y.plan").write_text('extends "x.plan"\n')
    git("add", "plans/y.plan")
    git("commit", "-qm", "another")
    (repository / "plans" / "y.plan").write_text('extends "x.plan"\ntrain {\n  override steps = 9\n}\n')
    shown = git("difftool", "--no-prompt", "-t", "planc", "--", "plans/y.plan")
    assert "(plans/y.plan: what it includes is read as it is here now)" in shown
    assert "120 -> 9" in shown


def test_print_writes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (repository / ".git" / "config").read_bytes()
    assert main(["git-setup", "--print"]) == 0
    assert capsys.readouterr().out.count("would write") == 3
    assert not (repository / ".gitattributes").exists()
    assert (repository / ".git" / "config").read_bytes() == before


def test_a_second_time_changes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["git-setup"]) == 0
    before = (repository / ".gitattributes").read_bytes(), (repository / ".git" / "config").read_bytes()
    capsys.readouterr()
    assert main(["git-setup"]) == 0
    assert capsys.readouterr().out.count("has already") == 3
    after = (repository / ".gitattributes").read_bytes(), (repository / ".git" / "config").read_bytes()
    assert after == before


def test_attributes_that_are_there_stay(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.bin binary")
    assert main(["git-setup"]) == 0
    assert (repository / ".gitattributes").read_text() == f"*.bin binary\n{ATTRIBUTE}\n"


def test_another_diff_driver_for_plans_is_left_alone(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / ".gitattributes").write_text("*.plan text diff=mine\n")
    assert main(["git-setup"]) == 2
    assert "another diff driver for plans: *.plan text diff=mine" in capsys.readouterr().err
    assert "planc" not in (repository / ".git" / "config").read_text()


def test_only_global_touches_the_owners_configuration(repository: Path, tmp_path: Path) -> None:
    assert main(["git-setup"]) == 0
    assert not (tmp_path / "home" / ".gitconfig").exists()
    git("config", "--local", "--remove-section", "diff.planc")
    before = (repository / ".git" / "config").read_text()
    assert main(["git-setup", "--global"]) == 0
    assert '[diff "planc"]' in (tmp_path / "home" / ".gitconfig").read_text()
    assert (repository / ".git" / "config").read_text() == before


def test_outside_a_repository_git_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["git-setup"]) == 2
    assert "not a git repository" in capsys.readouterr().err
