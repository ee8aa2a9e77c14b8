"""`planc git-setup` in real repositories, and what git shows of a changed plan afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.commands.git_setup import ATTRIBUTE
from planc.cli.main import main
from tests.patience import WAIT_SECONDS
from tests.plans import PLANS, QUICKSTART

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        stdin=subprocess.DEVNULL,
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
    shutil.copytree(PLANS / "models" / "tiny-llama", folder / "plans" / "models" / "tiny-llama")
    (folder / "plans" / "x.plan").write_text(QUICKSTART.read_text())
    git("init", "-q", "-b", "main")
    git("add", "plans/x.plan", "plans/models")
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


BASE_AND_PLAN = """\
extends "x.plan"
train {
  override steps = %d
}
"""


@pytest.fixture
def extended(repository: Path) -> Path:
    """The plans' folder: y.plan extends x.plan, where a later commit calls the parameter `lr` otherwise.

    No version of y.plan goes with the other version of its base.
    """
    assert main(["git-setup"]) == 0
    folder = repository / "plans"
    text = QUICKSTART.read_text()
    (folder / "x.plan").write_text(text.replace("steps = 120", "steps = 100"))
    (folder / "y.plan").write_text('extends "x.plan"\noverride lr = 3e-3\n')
    git("add", "plans")
    git("commit", "-qm", "a base and a plan")
    (folder / "x.plan").write_text(text.replace("lr: float", "rate: float").replace("lr = lr", "lr = rate"))
    (folder / "y.plan").write_text('extends "x.plan"\noverride rate = 4e-3\n')
    return folder


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("commits", "arguments"),
    [
        (0, ()),
        (0, ("HEAD",)),
        (1, ("HEAD~1",)),
        (1, ("HEAD~1", "HEAD")),
        (2, ("HEAD~2", "HEAD~1")),
        (0, ("--dir-diff", "HEAD")),
        (0, ("--dir-diff", "--no-symlinks")),
        (1, ("--dir-diff", "HEAD~1", "HEAD")),
        (2, ("--dir-diff", "HEAD~2", "HEAD~1")),
    ],
)
def test_difftool_reads_a_base_from_the_revision_of_the_plan(
    extended: Path, commits: int, arguments: tuple[str, ...]
) -> None:
    for _ in range(commits):
        git("add", "plans")
        git("commit", "-qm", "another base")
        if arguments != ("HEAD~1",):
            (extended / "x.plan").write_text("# neither of the two\n")
    shown = git("difftool", "--no-prompt", "-t", "planc", *arguments, "--", "plans/y.plan")
    assert "0.003 -> 0.004" in shown
    assert "train.steps  100 -> 120" in shown, "what the base sets differs too"


def test_difftool_of_staged_plans(extended: Path) -> None:
    git("add", "plans")
    (extended / "x.plan").write_text("# neither of the two\n")
    shown = git("difftool", "--no-prompt", "-t", "planc", "--cached", "--", "plans/y.plan")
    assert "0.003 -> 0.004" in shown


def test_difftool_says_where_several_revisions_could_be_meant(extended: Path) -> None:
    (extended / "x.plan").write_text(QUICKSTART.read_text())
    (extended / "y.plan").write_text('extends "x.plan"\noverride lr = 3e-3\n')
    git("add", "plans")
    git("commit", "-qm", "the same plan of another base")
    (extended / "y.plan").write_text('extends "x.plan"\noverride lr = 9e-3\n')
    shown = git("difftool", "--no-prompt", "-t", "planc", "HEAD~1", "--", "plans/y.plan")
    assert "several revisions have this text; included files and the model are read from the index" in shown


def test_difftool_of_a_base_shows_the_plans_that_did_not_change_themselves(extended: Path) -> None:
    (extended / "x.plan").write_text(QUICKSTART.read_text())
    git("checkout", "-q", "plans/y.plan")
    shown = git("difftool", "--no-prompt", "-t", "planc")
    assert "plans/y.plan includes plans/x.plan, which changed:" in shown
    assert shown.count("train.steps  100 -> 120") == 2


@pytest.mark.parametrize("arguments", [(), ("--dir-diff",)])
def test_difftool_of_a_part_shows_the_plans_that_include_it(
    repository: Path, arguments: tuple[str, ...]
) -> None:
    assert main(["git-setup"]) == 0
    part = repository / "plans" / "part.plan"
    part.write_text('optimizer "adam" {\n  kind = adamw(lr = 1e-3)\n}\n')
    uses = repository / "plans" / "uses.plan"
    text = QUICKSTART.read_text().replace(
        "  kind = adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)\n", "  use part.adam\n"
    )
    uses.write_text('import "part.plan" as part\n\n' + text.replace("param lr: float = 1.2e-2\n", ""))
    git("add", "plans")
    git("commit", "-qm", "a part")
    part.write_text(part.read_text().replace("1e-3", "2e-3"))
    shown = git("difftool", "--no-prompt", "-t", "planc", *arguments)
    assert "plans/uses.plan includes plans/part.plan, which changed:" in shown
    assert "0.001 -> 0.002" in shown
    uses.unlink()
    git("add", "-A", "plans")
    git("commit", "-qm", "nobody needs it")
    part.write_text(part.read_text().replace("2e-3", "4e-3"))
    shown = git("difftool", "--no-prompt", "-t", "planc")
    assert "plans/part.plan  is not included by any unchanged plan" in shown


def test_a_version_that_no_revision_has_is_read_with_what_is_here(repository: Path) -> None:
    old, plan = repository / "old", repository / "plans" / "y.plan"
    plan.write_text(BASE_AND_PLAN % 99)
    old.write_text(BASE_AND_PLAN % 90)
    done = subprocess.run(
        ["planc", "diff", "--path", "plans/y.plan", str(old), "plans/y.plan"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert "(plans/y.plan: included files and the model are read from the working tree)" in done.stdout
    assert "train.steps  90 -> 99" in done.stdout


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
