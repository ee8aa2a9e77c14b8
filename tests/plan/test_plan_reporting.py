"""The `logging` and `profile` blocks: from the plan to the graph, and what shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from planc.diff.differ import diff
from planc.diff.side import side_of
from planc.fmt.format import format_source
from planc.graph.artifact import dump, graph_of, load
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import InitMesh, Log, NextBatch, OpenLog, StartProfile, StopProfile, Tracker
from planc.graph.text import to_text
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from tests.plans import FULL, checked, write_plan

LOGGING = """
logging {
  per_rank = true
  tracker "wandb" { project = "tiny", mode = offline, entity = "us" }
  tracker "tensorboard"
}
"""
PROFILE = """
profile {
  first_step = 3
  last_step = 5
}
"""


def graph_with(folder: Path, blocks: str) -> Graph:
    found = checked(write_plan(folder, text=FULL + blocks)).graph
    assert found is not None
    return found


def test_a_plan_without_the_blocks_has_none_of_their_ops(tmp_path: Path) -> None:
    kinds = {type(op) for op in graph_with(tmp_path, "").ops()}
    assert kinds.isdisjoint({OpenLog, StartProfile, StopProfile})


def test_the_log_is_opened_as_soon_as_ranks_have_met(tmp_path: Path) -> None:
    init, opened, *_ = graph_with(tmp_path, LOGGING).setup
    assert isinstance(init, InitMesh)
    assert opened == OpenLog(
        per_rank=True,
        trackers=(
            Tracker(kind="tensorboard"),
            Tracker(kind="wandb", mode="offline", project="tiny", entity="us"),
        ),
    )


def test_the_order_of_trackers_means_nothing(tmp_path: Path) -> None:
    first, second = LOGGING.splitlines()[3:5]
    turned = LOGGING.replace(f"{first}\n{second}", f"{second}\n{first}")
    assert turned != LOGGING
    assert plan_hash(graph_with(tmp_path, LOGGING)) == plan_hash(graph_with(tmp_path, turned))


def test_a_block_that_asks_for_nothing_changes_nothing(tmp_path: Path) -> None:
    assert plan_hash(graph_with(tmp_path, "logging { }\n")) == plan_hash(graph_with(tmp_path, ""))


def test_a_profile_goes_around_the_step(tmp_path: Path) -> None:
    start, following, *_, log, stop = graph_with(tmp_path, PROFILE).step
    assert start == StartProfile(first_step=3, last_step=5, memory=False)
    assert isinstance(following, NextBatch)
    assert isinstance(log, Log)
    assert stop == StopProfile(last_step=5)


def test_the_graphs_text_shows_what_the_blocks_say(tmp_path: Path) -> None:
    text = to_text(graph_with(tmp_path, LOGGING + PROFILE))
    assert "trackers=(tensorboard, wandb(project=tiny, mode=offline, entity=us))" in text
    assert "profile.start            first_step=3 last_step=5 memory=false" in text


def test_the_resolved_plan_means_the_same(tmp_path: Path) -> None:
    before = checked(write_plan(tmp_path, text=FULL + LOGGING + PROFILE))
    assert before.bound is not None
    text = resolved_text(before.bound)
    after = checked(write_plan(tmp_path, name="resolved.plan", text=text))
    assert before.graph is not None and after.graph is not None
    assert plan_hash(before.graph) == plan_hash(after.graph)


def test_the_formatter_leaves_the_blocks_as_they_are(tmp_path: Path) -> None:
    text = (FULL + LOGGING + PROFILE).lstrip("\n")
    formatted, _ = format_source(SourceFile("x.plan", text))
    assert formatted is not None
    assert formatted.endswith((LOGGING + PROFILE).lstrip("\n"))


def test_a_difference_names_trackers_and_steps(tmp_path: Path) -> None:
    old = side_of(checked(write_plan(tmp_path, text=FULL)), name="old")
    new = side_of(checked(write_plan(tmp_path, name="y.plan", text=FULL + LOGGING + PROFILE)), name="new")
    assert old is not None and new is not None
    changes = {change.name: (change.old, change.new) for change in diff(old, new).changes}
    assert changes == {
        "logging.per_rank": (None, "true"),
        "logging.tracker": (None, "tensorboard, wandb(project=tiny, mode=offline, entity=us)"),
        "profile": (None, "steps 3 to 5"),
    }


def test_a_compiled_plan_keeps_the_ops(tmp_path: Path) -> None:
    graph = graph_with(tmp_path, LOGGING + PROFILE)
    again = graph_of(load(dump(graph, sources=(), overrides=())))
    assert again.setup == graph.setup
    assert again.step == graph.step


@pytest.mark.parametrize(
    ("text", "code", "label"),
    [
        ('logging { tracker "wandb", "x" }', "P102", "found"),
        ('logging { per_rank "true" }', "P210", "`per_rank` has no value"),
        ('logging { tracker "mlflow" { } }', "P207", "is not a label of `tracker`"),
        (
            'logging { tracker "wandb" { project = "a", mode = off } }',
            "P207",
            "expected `online` or `offline`",
        ),
        ("profile { first_step = 3 }", "P209", "last_step"),
        ("profile { first_step = 0, last_step = 5 }", "P206", "from 1"),
        ('tracker "wandb" { }', "P210", "is not allowed at the top level"),
    ],
)
def test_what_is_wrong_in_the_blocks_is_said(text: str, code: str, label: str, tmp_path: Path) -> None:
    found = check_plan(write_plan(tmp_path, text=f"{FULL}\n{text}\n")).diagnostics
    assert [one.code.code for one in found] == [code]
    assert label in f"{found[0].primary.text} {found[0].help}"
