"""What another plan changes for a run that goes on."""

from __future__ import annotations

import pytest

from planc.api import check_source
from planc.diff.side import Side, side_of
from planc.diff.verdict import ResumeChanges, changes_to_allow, resume_changes
from planc.source import SourceFile
from tests.plans import FULL, PLANS


def side(*settings: str, edits: tuple[tuple[str, str], ...] = ()) -> Side:
    text = FULL
    for old, new in edits:
        assert old in text, f"nothing to edit: {old}"
        text = text.replace(old, new)
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    found = side_of(check_source(SourceFile("x.plan", text), base=PLANS, settings=sources), name="x.plan")
    assert found is not None
    return found


def changes(*settings: str) -> ResumeChanges:
    return resume_changes(side(), side(*settings))


def names(found: ResumeChanges) -> tuple[list[str], list[str], list[str]]:
    return (
        [name for name, _ in found.training],
        [change.name for change in found.sums],
        [change.name for change in found.harmless],
    )


def test_an_equal_plan_changes_nothing() -> None:
    assert names(changes()) == ([], [], [])


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("optimizer.clip_grad_norm=0.5", "optimizer.clip_grad_norm"),
        ("model.rope=yarn(factor = 2)", "model.rope"),
        ("train.tokens_per_step=8192", "tokens/step"),
        ("optimizer.schedule=constant()", "schedule"),
    ],
)
def test_what_is_trained_changes_with_batch_optimizer_and_schedule(setting: str, name: str) -> None:
    training, _, _ = names(changes(setting))
    assert name in training
    assert set(training) <= set(changes_to_allow())


def test_groups_of_parameters_have_one_name_together() -> None:
    decay = ("group(weight_decay = 0.0)", "group(weight_decay = 0.05)")
    training, _, _ = names(resume_changes(side(), side(edits=(decay,))))
    assert training == ["parameter groups"]


def test_another_mesh_alters_sums_alone() -> None:
    training, sums, harmless = names(changes("mesh.tp=4", "mesh.dp_shard=1"))
    assert training == []
    assert {"mesh.tp", "mesh.dp_shard"} <= set(sums)
    assert harmless == []


def test_how_often_a_run_logs_and_saves_is_harmless() -> None:
    found = changes("train.log_every=7 steps", "checkpoint.save_every=11 steps")
    assert names(found) == ([], [], ["train.log_every", "checkpoint.save_every"])


def test_a_run_that_a_spike_has_ended_may_go_on_with_a_guard() -> None:
    found = changes("guard.loss_spike=skip", "guard.nonfinite=skip", "guard.replicas_every=10 steps")
    assert names(found) == ([], [], ["guard.nonfinite", "guard.loss_spike", "guard.replicas_every"])
    assert [change.new for change in found.harmless] == [
        "skip at most 5 in a row",
        "skip at most 5 in a row above 6 deviations of 50 steps",
        "10",
    ]
