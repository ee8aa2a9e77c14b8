"""`planc review`: which plans it finds, and the comment that it writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.api import NO_FILE
from planc.cli.main import main
from planc.cli.versions.changes import changed_plans, fork_point
from planc.diff.review import MARKER, MAX_CHARACTERS, Reviewed, render_review
from planc.inventory.files import config_digest
from planc.source import SourceFile
from tests.plans import FULL
from tests.review.conftest import commit, git, replace

HERE = Path(__file__).parent


def change_all(plans: Path) -> None:
    """Every kind of change a branch can make to a plan."""
    replace(plans / "batch.plan", "micro_batch = 1", "micro_batch = 2")
    replace(plans / "comments.plan", "mesh {", "# Two by two.\nmesh {")
    replace(
        plans / "presets" / "common.plan", "  auto\n", '  "model.layers.*.mlp.{gate,up}_proj" -> colwise\n'
    )
    (plans / "gone.plan").unlink()
    (plans / "new.plan").write_text(FULL.replace("tp = 2", "tp = 3"))


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_comment_says_what_changes_in_every_plan(
    plans: Path, capsys: pytest.CaptureFixture[str], match_golden: Callable[[Path, str], None]
) -> None:
    change_all(plans)
    commit()
    assert main(["review", "main"]) == 1
    commit_name = re.compile(rf"\b{git('rev-parse', '--short=7', 'main').strip()}\b")
    match_golden(HERE / "comment.md", commit_name.sub("0123abc", out(capsys)))


def test_annotations_are_on_the_lines_of_changed_plans(
    plans: Path, capsys: pytest.CaptureFixture[str], match_golden: Callable[[Path, str], None]
) -> None:
    change_all(plans)
    commit()
    assert main(["review", "main", "--output-format", "github"]) == 1
    match_golden(HERE / "annotations.txt", out(capsys))


def test_a_new_plan_is_shown_with_its_figures(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plans / "new.plan").write_text((plans / "batch.plan").read_text())
    git("add", "plans/new.plan")
    assert main(["review", "main"]) == 0
    figures = r"world size 4, 804\\_992 parameters, 128 tokens per step, peak memory \d+\.\d+ MiB per rank"
    assert re.search(rf"\| plans/new.plan \| is new: {figures} \|", out(capsys))


def test_a_fault_in_a_preset_is_annotated_once(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plans / "more.plan").write_text((plans / "uses.plan").read_text())
    git("add", "plans/more.plan")
    replace(plans / "presets" / "common.plan", "lr = lr", "lr = lrr")
    assert main(["review", "main", "--output-format", "github"]) == 1
    (line,) = out(capsys).splitlines()
    assert "planc P205 " in line and "file=plans/presets/common.plan,line=8," in line
    assert line.endswith("%0Afound in 2 plans, starting with plans/more.plan")


def test_a_change_that_is_not_committed_yet_counts(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    assert main(["review", "main"]) == 0
    assert "| plans/batch.plan | run |" in out(capsys)


def test_what_came_to_the_base_since_is_no_change(plans: Path) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    commit()
    git("switch", "-q", "main")
    replace(plans / "untouched.plan", "steps = 10", "steps = 30")
    commit()
    git("switch", "-q", "change")
    assert [plan.path for plan in changed_plans(fork_point("main"))] == ["plans/batch.plan"]


def test_a_preset_brings_up_the_plans_that_use_it_and_is_none_itself(plans: Path) -> None:
    replace(plans / "presets" / "common.plan", "1e-3", "3e-3")
    (found,) = changed_plans(fork_point("main"))
    assert (found.path, found.because) == ("plans/uses.plan", ("plans/presets/common.plan",))


def test_a_preset_that_is_gone_brings_up_the_plans_that_use_it(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plans / "presets" / "common.plan").unlink()
    assert main(["review", "main"]) == 1
    assert (
        "plans/uses.plan | has errors that prevent a comparison (through plans/presets/common.plan) | 1 error"
        in out(capsys)
    )


def change_model(plans: Path) -> None:
    """Another epsilon in config.json, and the inventory that a probe would save for it."""
    folder = plans / "models" / "tiny-llama"
    config, inventory = folder / "config.json", folder / "inventory.json"
    digest = config_digest(config.read_bytes())
    replace(config, '"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-06')
    replace(inventory, digest, config_digest(config.read_bytes()))


def test_a_model_that_changed_brings_up_its_plans(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_model(plans)
    found = changed_plans(fork_point("main"))
    names = ["batch", "comments", "gone", "untouched", "uses"]
    assert [plan.path for plan in found] == [f"plans/{name}.plan" for name in names]
    files = ("plans/models/tiny-llama/config.json", "plans/models/tiny-llama/inventory.json")
    assert {plan.because for plan in found} == {files}
    assert main(["review", "main", "--fail-on", "layout"]) == 1
    text = out(capsys)
    assert "(through plans/models/tiny-llama/config.json, plans/models/tiny-llama/inventory.json)" in text
    assert "as it is now" not in text


def test_a_model_behind_a_link_brings_up_its_plans(plans: Path) -> None:
    (plans / "linked").symlink_to("models")
    replace(plans / "batch.plan", "models/tiny-llama", "linked/tiny-llama")
    git("add", "plans/linked")
    commit()
    change_model(plans)
    assert "plans/batch.plan" in [plan.path for plan in changed_plans("HEAD")]


def test_a_model_that_git_does_not_have_is_noted(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git("rm", "-rq", "--cached", "plans/models")
    git("commit", "-qm", "no models")
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    assert main(["review", "HEAD"]) == 0
    assert "model models/tiny-llama is not in git at " in out(capsys)


def test_a_plan_that_moved_is_compared_with_what_it_was(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    git("mv", "plans/batch.plan", "plans/moved.plan")
    assert main(["review", "main"]) == 0
    text = out(capsys)
    assert "| plans/moved.plan | run |" in text
    assert "plans/batch.plan -\\> plans/moved.plan" in text


def test_paths_start_at_the_current_folder(
    plans: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    monkeypatch.chdir(plans)
    assert main(["review", "main"]) == 0
    assert "| batch.plan |" in out(capsys)


def test_an_unchanged_branch_says_so(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["review", "main"]) == 0
    assert out(capsys).endswith("\nNo plan changed.\n")


def test_a_change_that_only_brings_a_warning_shows_it(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(plans / "batch.plan", "mesh {", "mesh {  # planc: ignore[P304] one node")
    (plans / "new.plan").write_text((plans / "batch.plan").read_text())
    git("add", "plans/new.plan")
    assert main(["review", "main"]) == 0
    text = out(capsys)
    for name in ("batch", "new"):
        assert re.search(rf"- plans/{name}.plan:\d+:9 \\\[P903\\\] this comment suppresses nothing: ", text)


def test_fail_on_watches_a_group_of_all_plans(plans: Path) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    assert main(["review", "main", "--fail-on", "layout"]) == 0
    assert main(["review", "main", "--fail-on", "layout", "--fail-on", "run"]) == 1


@pytest.mark.parametrize("base", ["none", "--output=x", "HEAD:plans"])
def test_a_base_that_is_no_commit_is_two(plans: Path, capsys: pytest.CaptureFixture[str], base: str) -> None:
    assert main(["review", "--", base]) == 2
    assert f"planc: error: {base} is not a commit in this clone" in capsys.readouterr().err


def test_histories_without_a_common_commit_are_two(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git("switch", "-q", "--orphan", "alone")
    git("commit", "-q", "--allow-empty", "-m", "x")
    assert main(["review", "main"]) == 2
    assert "fetch the full history" in capsys.readouterr().err


def test_text_of_plans_cannot_write_markdown() -> None:
    text = render_review([Reviewed("a|b<img>.plan", what="is new")], revision="0123abc")
    assert "| a\\|b\\<img\\>.plan | is new |  |" in text


def test_what_a_comment_cannot_take_is_named() -> None:
    errors = tuple(NO_FILE.at(SourceFile("x.plan", "").start(), f"{number:03}" * 100) for number in range(15))
    plans = [Reviewed(f"x{number}.plan", what="is new", diagnostics=errors) for number in range(15)]
    text = render_review(plans, revision="0123abc")
    assert text.startswith(f"{MARKER}\n")
    assert MAX_CHARACTERS - 5_100 < len(text) < MAX_CHARACTERS + 200
    assert text.endswith(
        "\n4 differences omitted from this long comment; see `planc diff`: "
        "x11.plan, x12.plan, x13.plan, x14.plan\n"
    )


@pytest.mark.parametrize("target", ["../../secret.plan", "/etc/passwd"])
def test_a_plan_that_is_a_link_out_of_the_repository_is_refused(
    plans: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (plans.parent.parent / "secret.plan").write_text("secret")
    (plans / "linked.plan").symlink_to(target)
    git("add", "plans/linked.plan")
    assert main(["review", "main"]) == 2
    captured = capsys.readouterr()
    assert "plans/linked.plan is a link out of the repository" in captured.err
    assert "secret" not in captured.out + captured.err and "root:" not in captured.out


def test_a_link_within_the_repository_is_a_plan_like_any_other(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plans / "linked.plan").symlink_to("batch.plan")
    git("add", "plans/linked.plan")
    assert main(["review", "main"]) == 0
    assert "linked.plan" in capsys.readouterr().out
