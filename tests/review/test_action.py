"""The GitHub Action: the script that its step runs, here, over a repository and a store of comments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import WAIT_SECONDS
from tests.review.conftest import ROOT, commit, replace

# What GitHub's command line does of what the script asks for: list with a filter, POST, PATCH.
GH = """\
#!/usr/bin/env python3
import json, pathlib, sys
store = pathlib.Path(__file__).with_name("comments.json")
comments = json.loads(store.read_text()) if store.exists() else []
words = sys.argv[1:]
assert words[0] == "api", words
method = words[words.index("--method") + 1] if "--method" in words else "GET"
(path,) = [word for word in words if word.startswith("repos/")]
if method == "GET":
    assert path == "repos/o/r/issues/7/comments" and "--paginate" in words, words
    assert 'startswith("<!-- planc review -->")' in words[words.index("--jq") + 1]
    for one in comments:
        if one["user"] == "Bot" and one["body"].startswith("<!-- planc review -->"):
            print(one["id"])
    sys.exit()
name, _, file = words[words.index("--field") + 1].partition("=@")
assert name == "body", words
body = pathlib.Path(file).read_text()
if method == "POST":
    assert path == "repos/o/r/issues/7/comments", path
    comments.append({"id": 100 + len(comments), "user": "Bot", "body": body})
else:
    (found,) = [one for one in comments if path == f"repos/o/r/issues/comments/{one['id']}"]
    found["body"] = body
store.write_text(json.dumps(comments))
"""


@pytest.fixture
def comments(tools: Path) -> Path:
    """The pull request's comments, in which a person already quotes the marker."""
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    store = tools / "comments.json"
    store.write_text(json.dumps([{"id": 1, "user": "User", "body": "<!-- planc review --> what is this?"}]))
    return store


def run(plans: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "BASE": "main",
        "PULL_REQUEST": "7",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_STEP_SUMMARY": str(plans.parents[1] / "summary.md"),
    }
    return subprocess.run(
        [str(ROOT / ".ci" / "review")],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def stored(comments: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(comments.read_text())
    return found


def test_two_pushes_leave_one_comment_that_says_the_latest(plans: Path, comments: Path) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    commit()
    assert run(plans).returncode == 0
    replace(plans / "batch.plan", "steps = 20", "steps = 30")
    commit()
    assert run(plans).returncode == 0
    human, ours = stored(comments)
    assert human["body"].endswith("what is this?")
    assert "train.steps | 10 -\\> 30" in ours["body"]
    assert (plans.parents[1] / "summary.md").read_text().endswith(ours["body"])


def test_the_comment_links_to_the_report(plans: Path, comments: Path) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    address = "https://example.org/artifacts/1"
    assert run(plans, REPORT_URL=address).returncode == 0
    assert stored(comments)[1]["body"].endswith(f"[Report with pictures]({address})\n")
    assert (plans.parents[1] / "summary.md").read_text().count(address) == 1


def test_the_action_writes_the_report_that_it_uploads(plans: Path, tools: Path, tmp_path: Path) -> None:
    replace(plans / "batch.plan", "tp = 2", "tp = 3")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (upload,) = [step for step in action["runs"]["steps"] if "upload-artifact" in step.get("uses", "")]
    (write,) = [step for step in action["runs"]["steps"] if "--output-format html" in step.get("run", "")]
    (tmp_path / "planc").mkdir()
    (tmp_path / "planc" / "bin").symlink_to(tools)
    variables = {**os.environ, "RUNNER_TEMP": str(tmp_path), "BASE": "main"}
    done = subprocess.run(["bash", "-ec", write["run"]], env=variables, timeout=WAIT_SECONDS)
    assert done.returncode == 0
    page = Path(upload["with"]["path"].replace("${{ runner.temp }}", str(tmp_path)))
    assert "plans/batch.plan" in page.read_text()


def test_errors_are_annotated_and_fail_the_job(plans: Path, comments: Path) -> None:
    replace(plans / "batch.plan", "tp = 2", "tp = 3")
    result = run(plans)
    assert result.returncode == 1
    assert "::error title=planc P401 heads-indivisible,file=plans/batch.plan,line=9," in result.stdout
    assert "1 error" in stored(comments)[1]["body"]


def test_a_watched_group_fails_the_job(plans: Path, comments: Path) -> None:
    replace(plans / "batch.plan", "steps = 10", "steps = 20")
    assert run(plans, FAIL_ON="checkpoint run").returncode == 1


def test_a_review_that_cannot_run_leaves_the_comment(plans: Path, comments: Path) -> None:
    before = comments.read_text()
    result = run(plans, BASE="none")
    assert result.returncode == 2
    assert "none is not a commit in this clone" in result.stderr
    assert comments.read_text() == before


def test_without_a_pull_request_nothing_is_posted(plans: Path, comments: Path) -> None:
    before = comments.read_text()
    assert run(plans, PULL_REQUEST="").returncode == 0
    assert comments.read_text() == before


def test_a_token_that_may_not_write_is_a_warning(plans: Path, comments: Path, tools: Path) -> None:
    (tools / "gh").write_text("#!/bin/sh\necho 'HTTP 403: Resource not accessible' >&2\nexit 1\n")
    result = run(plans)
    assert result.returncode == 0
    assert "::warning title=planc::the comment could not be written" in result.stdout


def test_the_action_runs_the_script_with_every_input_through_the_environment() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert steps[-1]["run"].endswith('"$ACTION/.ci/review"')
    names = {"BASE", "FAIL_ON", "PULL_REQUEST", "GH_TOKEN", "REPORT_URL", "ACTION"}
    assert names == set(steps[-1]["env"])
    assert not any("${{" in step["run"] for step in steps)
    used = " ".join(str(value) for step in steps for value in step["env"].values())
    assert all(f"inputs.{name}" in used for name in action["inputs"])
