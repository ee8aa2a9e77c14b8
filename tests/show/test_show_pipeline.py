"""The drawing of a pipeline's schedule, and the same as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.diff.differ import diff
from planc.diff.side import side_of
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.show.overview import overview
from planc.show.pipeline import MAX_CELLS, pipeline_data, pipeline_text
from tests.pipelining.tiny import pipelined
from tests.plans import PLANS, checked


def pipeline_in(path: Path) -> Pipeline:
    graph = checked(path).graph
    assert graph is not None
    found = pipeline_of(graph)
    assert found is not None
    return found


def drawn(path: Path) -> str:
    return pipeline_text(pipeline_in(path))


def test_a_short_step_is_drawn_in_full(tmp_path: Path) -> None:
    path = pipelined(tmp_path, pp=2, schedule="one_f_one_b", micro_batches=4)
    assert drawn(path) == (
        "2 stages on 2 pp ranks, 4 micro batches, bubble 20.0 %\n"
        "\n"
        "stage  pp rank  in flight  modules\n"
        "    0        0          2  model.embed_tokens, model.layers.{0..1}\n"
        "    1        1          1  model.layers.{2..3}, model.norm, lm_head\n"
        "\n"
        "rank 0  0 1 . . [0] 2 [1] 3 [2] . [3]\n"
        "rank 1  . 0 [0] 1 [1] 2 [2] 3 [3] . .\n"
        "\n"
        "0 is a forward, [0] a backward of two slots, . an idle slot; numbers are micro batches\n"
    )


def test_gradients_of_weights_fill_the_time_of_waiting(tmp_path: Path) -> None:
    path = pipelined(tmp_path, pp=2, schedule="zero_bubble", micro_batches=4)
    assert drawn(path) == (
        "2 stages on 2 pp ranks, 4 micro batches, bubble 7.7 %\n"
        "\n"
        "stage  pp rank  in flight  modules\n"
        "    0        0          2  model.embed_tokens, model.layers.{0..1}\n"
        "    1        1          2  model.layers.{2..3}, model.norm, lm_head\n"
        "\n"
        "rank 0  0   1   .   [0] (0) 2   [1] (1) 3   [2] (2) [3] (3)\n"
        "rank 1  .   0   [0] 1   [1] (0) 2   [2] (1) 3   [3] (2) (3)\n"
        "\n"
        "0 is a forward, [0] a backward, (0) its gradients of weights, . an idle slot; "
        "numbers are micro batches\n"
    )


def test_a_weight_of_two_stages_is_named(tmp_path: Path) -> None:
    path = pipelined(tmp_path, pp=4, is_tied=True)
    assert (
        "lm_head\n\n"
        "model.embed_tokens.weight = lm_head.weight: in stages 0 and 3, which sum its gradients once a step\n"
        "\nrank 0 "
    ) in drawn(path)
    assert pipeline_data(pipeline_in(path))["ties"] == [["model.embed_tokens.weight", "lm_head.weight"]]


def test_units_have_the_number_of_times_that_they_are_gathered() -> None:
    path = PLANS / "launch-pp2-dp2.plan"
    assert (
        "stage  gathered in a step  FSDP units\n"
        "    0                   4  model.layers.{0..1}\n"
        "    0                   8  model.embed_tokens\n"
        "    1                   4  model.layers.{2..3}, [model.norm, lm_head]\n\n"
    ) in drawn(path)
    first, *_ = pipeline_data(pipeline_in(path))["units"]
    gathered = [["0F0", "0B0"], ["0F2", "0B1"], ["0F3", "0B2"], ["0B3", "0B3"]]
    assert first == {"modules": ["model.layers.0"], "stage": 0, "gathered": gathered}


def test_a_long_step_is_cut_in_the_middle(tmp_path: Path) -> None:
    path = pipelined(tmp_path, pp=2, schedule="interleaved(stages_per_rank = 2)", micro_batches=4)
    *_, first, second, blank, cut, key = drawn(path).splitlines()
    assert first == "rank 0  0.0 0.1 2.0 2.1 0.2 .   [2.0]   ...         .   [2.3]   [0.2]   [0.3]"
    assert second == "rank 1  .   1.0 1.1 3.0 [3.0]   3.1     ...     [3.3]   [1.2]   [1.3]   .   ."
    assert (blank, cut) == ("", "11 of 27 slots are left out in the middle")
    assert key.endswith("numbers are stage.micro batch")


@pytest.mark.parametrize("micro_batches", [1, 2, 5, 6, 7, 8, 64, 1000])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zero_bubble"])
def test_no_row_is_wider_than_a_terminal(tmp_path: Path, schedule: str, micro_batches: int) -> None:
    path = pipelined(tmp_path, pp=4, schedule=schedule, micro_batches=micro_batches)
    rows = [line for line in drawn(path).splitlines() if line.startswith("rank ")]
    assert len(rows) == 4
    assert max(map(len, rows)) <= MAX_CELLS
    # Forwards and backwards that are drawn are whole.
    assert all(row.count("[") == row.count("]") for row in rows)


def test_data_have_every_action_with_its_slot(tmp_path: Path) -> None:
    found = pipeline_data(pipeline_in(pipelined(tmp_path, pp=2, schedule="gpipe", micro_batches=2)))
    assert found["ranks"][1] == {
        "pp_rank": 1,
        "order": ["1F0", "1F1", "1B0", "1B1"],
        "start_slots": [1, 2, 3, 5],
        "in_flight": 2,
        "bubble": pytest.approx(1 / 3),
    }
    assert [stage["in_flight"] for stage in found["stages"]] == [2, 2]
    assert found["message_shape"] == [1, 64, 128]


def test_the_command_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pipelined(tmp_path, pp=2, schedule="one_f_one_b", micro_batches=4)
    assert main(["show", str(path), "--pipeline"]) == 0
    assert capsys.readouterr().out == drawn(path)
    assert main(["show", str(path), "--pipeline", "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pipeline"]["num_micro_batches"] == 4


def test_a_plan_without_a_pipeline_has_no_drawing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "plans/quickstart.plan", "--pipeline"]) == 2
    assert "this plan has none, because its mesh has pp = 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "schedule", ["gpipe", "one_f_one_b", "interleaved(stages_per_rank = 2)", "zero_bubble"]
)
def test_a_check_and_a_difference_name_the_same_schedule(tmp_path: Path, schedule: str) -> None:
    other = "gpipe" if schedule == "one_f_one_b" else "one_f_one_b"
    old, new = (
        checked(pipelined(tmp_path, pp=2, schedule=one, micro_batches=4)) for one in (other, schedule)
    )
    sides = side_of(old, name="old"), side_of(new, name="new")
    assert sides[0] is not None and sides[1] is not None
    (change,) = [one for one in diff(sides[0], sides[1]).changes if one.name == "pipeline"]
    assert new.draft is not None
    summary = dict(overview(new.draft.bound, new.draft.graph, new.draft.estimate))["pipeline"]
    assert change.new == summary.partition(", bubble")[0]
