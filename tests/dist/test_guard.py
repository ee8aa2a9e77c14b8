"""Steps whose numbers are wrong on one of two ranks: both stop or skip them, and report them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planc.runtime.errors import ExitCode
from tests.dist.faulty_steps import WEIGHT, Fault, Told, run_faulty
from tests.parity.cases import NUM_STEPS, Case
from tests.slow import slow_except

DP2 = Case("DP2", "accumulate 2", {"dp_shard": 2}, micro_batch=2)
TP2 = Case("TP2", "", {"tp": 2})
REPLICAS = Case("DP2", "replicas", {"dp_replicate": 2})


@pytest.fixture(scope="module")
def undisturbed(workspace: Path) -> Told:
    """What rank 0 of a run tells in which nothing goes wrong."""
    return run_faulty(workspace, DP2, None, "guard.loss_spike=stop(window = 5 steps)")[0]


@pytest.mark.parametrize("value", slow_except((math.nan, math.inf), "nan"))
def test_a_loss_that_is_no_number_stops_all_ranks_with_the_state_before_and_names_its_sequences(
    workspace: Path, undisturbed: Told, value: float
) -> None:
    told = run_faulty(workspace, DP2, Fault("loss", (3,), "loss", value))
    for one in told:
        assert one.code is ExitCode.NUMERICS
        assert one.states[-1] == one.states[2] != one.states[1]
    (batch,) = told[0].record["numerics"]["ranks"][0]["micro_batches"]
    # Two micro steps, two ranks, two sequences: the last two of the global batch.
    assert tuple(batch["sequences"]) == undisturbed.steps[2].sample_ids[-2:]
    shown = ", ".join(map(str, batch["sequences"]))
    assert (
        f"at step 3, and no weight was changed: rank 1, micro-batch 1 (sequences {shown})" in told[0].message
    )
    assert told[0].record["numerics"]["step"] == 3
    assert [one["rank"] for one in told[0].record["numerics"]["ranks"]] == [1]


def test_a_weight_that_is_no_number_is_named_with_its_rank(workspace: Path) -> None:
    for one in run_faulty(workspace, DP2, Fault("batch.next", (2,), "weight")):
        assert one.code is ExitCode.NUMERICS
        assert "at step 2" in one.message
        if one.noted:
            assert f"{WEIGHT} itself is NaN or inf on rank 1" in one.message


def test_the_help_names_a_checkpoint_only_after_one_was_saved(workspace: Path, tmp_path: Path) -> None:
    fault = Fault("batch.next", (3,), "weight")
    (unsaved, _) = run_faulty(workspace, DP2, fault)
    assert unsaved.help.startswith(
        "check that the initial weights are finite: there is no earlier checkpoint"
    )
    (saved, _) = run_faulty(workspace, DP2, fault, "checkpoint.save_every=1 step", run_folder=tmp_path)
    assert saved.help.startswith("resume from the previous checkpoint")


def test_an_infinite_loss_of_finite_gradients_changes_no_weight(workspace: Path) -> None:
    for one in run_faulty(workspace, DP2, Fault("grads.clip", (2,), "step loss", math.inf)):
        assert (one.code, "the loss is inf at step 2" in one.message) == (ExitCode.NUMERICS, True)
        assert one.states[-1] == one.states[1]


def test_a_skipped_step_leaves_weights_and_optimizer_and_takes_its_data(
    workspace: Path, undisturbed: Told
) -> None:
    told = run_faulty(workspace, DP2, Fault("loss", (3,), "loss"), "guard.nonfinite=skip")
    for one in told:
        assert one.code is None
        assert one.states[3] == one.states[2]
        assert one.states[4] != one.states[3]
    ids = [[step.sample_ids for step in run.steps] for run in (told[0], undisturbed)]
    assert ids[0] == ids[1]
    assert any(text.startswith("step 3 is skipped: the loss is nan") for text in told[0].noted)
    assert [bool(step.is_skipped) for step in told[0].steps] == [
        step == 3 for step in range(1, NUM_STEPS + 1)
    ]


def test_too_many_skipped_steps_in_a_row_end_the_run(workspace: Path) -> None:
    fault = Fault("loss", (2, 3, 4, 5), "loss")
    for one in run_faulty(workspace, DP2, fault, "guard.nonfinite=skip(at_most = 2)"):
        assert one.code is ExitCode.NUMERICS
        assert "after 2 skipped steps in a row at step 4" in one.message
        assert one.states[-1] == one.states[1]


@pytest.mark.parametrize("case", [DP2, TP2], ids=lambda case: case.shape)
def test_a_spike_is_skipped_alike_on_all_ranks(workspace: Path, case: Case) -> None:
    fault = Fault("loss" if case is DP2 else "grads.clip", (6,), "loss" if case is DP2 else "step loss", 50.0)
    told = run_faulty(workspace, case, fault, "guard.loss_spike=skip(window = 5 steps)")
    for one in told:
        assert one.code is None
        assert one.states[-1] == one.states[5]
        assert len(one.losses) == 5, "a skipped loss does not predict the next"
    assert "is a spike" in told[0].noted[-1]


def test_a_spike_ends_the_run_where_the_plan_says_so(workspace: Path) -> None:
    told = run_faulty(
        workspace, DP2, Fault("loss", (6,), "loss", 50.0), "guard.loss_spike=stop(window = 5 steps)"
    )
    for one in told:
        assert one.code is ExitCode.NUMERICS
        assert one.states[-1] == one.states[5]
    assert "is a spike: " in told[0].message
    assert "rank 1, micro-batch 1 (" in told[0].message


def test_losses_that_fall_as_ever_are_no_spikes(undisturbed: Told) -> None:
    assert undisturbed.code is None
    assert len(undisturbed.losses) == 5


def test_a_resumed_run_judges_by_the_losses_before(workspace: Path, tmp_path: Path) -> None:
    setting = "guard.loss_spike=skip(window = 5 steps)"
    fault = Fault("loss", (6,), "loss", 50.0)
    run_faulty(workspace, DP2, None, setting, run_folder=tmp_path / "run", stop_after=3)
    for one in run_faulty(workspace, DP2, fault, setting, run_folder=tmp_path / "run"):
        assert min(one.states.keys() - {-1}) == 3, "the first three steps come from the checkpoint"
        assert one.states[-1] == one.states[5]


def test_a_flipped_bit_of_a_replica_is_named_with_its_ranks(workspace: Path) -> None:
    told = run_faulty(
        workspace, REPLICAS, Fault("optimizer.step", (3,), "bit"), "guard.replicas_every=1 step"
    )
    for one in told:
        assert one.code is ExitCode.NUMERICS
        assert "copies of a weight differ after step 3 (they agreed after step 2)" in one.message
    assert f"{WEIGHT} differs between rank 0 and rank 1" in told[0].message


def test_replicas_that_agree_are_left_alone(workspace: Path) -> None:
    for one in run_faulty(workspace, REPLICAS, None, "guard.replicas_every=2 steps"):
        assert one.code is None


def test_a_rank_alone_in_its_bits_is_told_from_those_that_agree(workspace: Path) -> None:
    case = Case("DP4", "replicas", {"dp_replicate": 4})
    told = run_faulty(workspace, case, Fault("optimizer.step", (2,), "bit"), "guard.replicas_every=1 step")
    assert f"{WEIGHT} on rank 1 differs from ranks 0, 2, 3" in told[0].message
