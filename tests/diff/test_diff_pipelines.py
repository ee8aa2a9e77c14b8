"""A change of a pipeline is shown by its consequences: stages, and the time that ranks are idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planc.api import check_plan
from planc.diff.differ import diff
from planc.diff.difference import Action, Change, Group
from planc.diff.side import Side, side_of
from tests.pipelining.tiny import pipelined

BUBBLE = "bubble, if stages take equal time"


def side(folder: Path, name: str, **pipeline: Any) -> Side:
    folder = folder / name
    folder.mkdir()
    found = side_of(check_plan(pipelined(folder, **pipeline)), name=name)
    assert found is not None
    return found


def changes(old: Side, new: Side, *groups: Group) -> list[tuple[str, str | None, str | None]]:
    found: list[Change] = [one for one in diff(old, new).changes if one.group in groups]
    return [(one.name, one.old, one.new) for one in found if one.action is not Action.KEEP]


def test_a_schedule_changes_the_bubble_and_no_stage(tmp_path: Path) -> None:
    old = side(tmp_path, "old", schedule="gpipe")
    new = side(tmp_path, "new", schedule="interleaved(stages_per_rank = 2)")
    assert changes(old, new, Group.LAYOUT, Group.TIME) == [
        ("pipeline", "gpipe, 2 stages", "interleaved, 4 stages"),
        ("stage 0", "model.embed_tokens, model.layers.{0..1}", "model.embed_tokens, model.layers.0"),
        ("stage 1", "model.layers.{2..3}, model.norm, lm_head", "model.layers.1"),
        ("stage 2", None, "model.layers.2"),
        ("stage 3", None, "model.layers.3, model.norm, lm_head"),
        (BUBBLE, "20.0 %", "11.1 %"),
    ]


def test_gradients_of_weights_make_the_bubble_smaller(tmp_path: Path) -> None:
    old, new = side(tmp_path, "old"), side(tmp_path, "new", schedule="zero_bubble")
    assert changes(old, new, Group.LAYOUT, Group.TIME) == [
        ("pipeline", "one_f_one_b, 2 stages", "zero_bubble, 2 stages"),
        (BUBBLE, "20.0 %", "7.7 %"),
    ]


def test_a_split_changes_stages_and_no_bubble(tmp_path: Path) -> None:
    rules = '  "model.layers.0" -> stage(0)\n  "model.layers.{1,2,3}" -> stage(1)\n'
    old, new = side(tmp_path, "old"), side(tmp_path, "new", rules=rules)
    assert changes(old, new, Group.LAYOUT, Group.TIME) == [
        ("stage 0", "model.embed_tokens, model.layers.{0..1}", "model.embed_tokens, model.layers.0"),
        ("stage 1", "model.layers.{2..3}, model.norm, lm_head", "model.layers.{1..3}, model.norm, lm_head"),
    ]


def test_more_micro_batches_make_the_bubble_smaller(tmp_path: Path) -> None:
    old, new = side(tmp_path, "old"), side(tmp_path, "new", micro_batches=8)
    assert changes(old, new, Group.TIME) == [(BUBBLE, "20.0 %", "11.1 %")]
    assert ("gradient_accumulation", "4", "8") in changes(old, new, Group.BATCH)


def test_a_tie_is_a_weight_in_two_stages(tmp_path: Path) -> None:
    found = changes(
        side(tmp_path, "old", pp=1, is_tied=True), side(tmp_path, "new", is_tied=True), Group.LAYOUT
    )
    assert ("weights in two stages", None, "model.embed_tokens.weight = lm_head.weight") in found


def test_a_new_pipeline_is_added(tmp_path: Path) -> None:
    found = changes(side(tmp_path, "old", pp=1), side(tmp_path, "new"), Group.LAYOUT, Group.TIME)
    assert ("pipeline", None, "one_f_one_b, 2 stages") in found
    assert (BUBBLE, None, "20.0 %") in found
