"""The estimate of a pipeline: every pp rank's part, its micro batches in flight, and the simulated step."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from planc.api import Checked
from planc.cli.main import main
from planc.devices.hardware import DEVICES
from planc.estimate.activations import activations
from planc.estimate.bound import step_bound
from planc.estimate.estimate import estimate, estimated_facts
from planc.estimate.expectation import step_expectation
from planc.estimate.loss import loss
from planc.estimate.parts import Part, parts, stage_works
from planc.estimate.rank_work import rank_work
from planc.estimate.result import Estimate, Kind
from planc.estimate.routes import members_of, route
from planc.estimate.step_work import StepWork, step_work
from planc.graph.groups import axes
from planc.graph.ops import SplitPipeline
from planc.inventory.footprint import OwnCode
from tests.pipelining.tiny import pipelined
from tests.plans import checked

H100 = DEVICES["h100"]
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved(stages_per_rank = 2)", "zero_bubble")
HIDDEN_BYTES = 64 * 128 * 4
"""One micro batch between two stages: tokens, features, float32."""


def plan(folder: Path, **pipeline: Any) -> Checked:
    return checked(pipelined(folder, **pipeline))


def parts_of(found: Checked) -> tuple[Part, ...]:
    assert found.graph is not None and found.inventory is not None
    return parts(found.graph, found.inventory)


def estimate_of(found: Checked) -> Estimate:
    assert found.graph is not None and found.inventory is not None
    return estimate(found.graph, found.inventory)


def work_of(found: Checked) -> StepWork:
    assert found.graph is not None and found.inventory is not None
    return step_work(found.graph, found.inventory, estimate_of(found))


@pytest.mark.parametrize(("pp", "schedule"), [(2, "gpipe"), (4, "gpipe"), (2, SCHEDULES[2])])
def test_ranks_have_the_model_together(tmp_path: Path, pp: int, schedule: str) -> None:
    whole = estimate_of(plan(tmp_path, pp=1))
    split = estimate_of(plan(tmp_path, pp=pp, schedule=schedule))
    assert len(split.ranks) == pp
    assert sum(one.num_local_parameters for one in split.ranks) == whole.num_local_parameters
    for name in ("parameters", "gradients", "optimizer"):
        own = [one.memory.part(name).num_bytes for one in split.ranks]
        assert sum(own) == whole.memory.part(name).num_bytes
    assert split.flops == replace(whole.flops, world_size=pp)


@pytest.mark.parametrize(("pp", "schedule"), [(2, "gpipe"), (4, "gpipe"), (2, SCHEDULES[2])])
def test_both_ends_hold_a_tied_weight(tmp_path: Path, pp: int, schedule: str) -> None:
    """And sum its gradient over the two of them, as large as it is."""
    found = plan(tmp_path, pp=pp, schedule=schedule, is_tied=True)
    assert found.inventory is not None and found.inventory.ties
    table = found.inventory.vocab_size * found.inventory.hidden_size
    ranks = estimate_of(found).ranks
    assert sum(one.num_local_parameters for one in ranks) == found.inventory.num_parameters + table
    sums = [[one for one in rank.collectives if one.cause == "grads.sum_ties"] for rank in ranks]
    own = [(2, 1, 4 * table)]
    assert [[(one.group_size, one.count, one.input_bytes) for one in rank] for rank in sums] == [
        own,
        *([] for _ in ranks[2:]),
        own,
    ]


@pytest.mark.parametrize(("devices_per_node", "crosses"), [(2, True), (4, False)])
def test_ends_in_two_nodes_send_through_the_network(
    tmp_path: Path, devices_per_node: int, crosses: bool
) -> None:
    tied = plan(tmp_path, pp=4, is_tied=True)
    assert tied.graph is not None
    found = estimate_of(tied)
    (one,) = (one for one in found.ranks[0].collectives if one.cause == "grads.sum_ties")
    way = route(one, members_of(one, axes(tied.graph), devices_per_node))
    assert (way.nic_bytes, way.link_bytes) == ((one.sent_bytes, 0) if crosses else (0, one.sent_bytes))


@pytest.mark.parametrize("more", ["", 'activation_checkpoint {\n  "model.layers.*" -> full\n}\n'])
def test_stages_keep_what_the_whole_model_keeps(tmp_path: Path, more: str) -> None:
    found = plan(tmp_path, pp=1, more=more)
    assert found.graph is not None and found.inventory is not None
    whole = activations(rank_work(found.graph, found.inventory)).kept
    alone = parts_of(plan(tmp_path, pp=4, micro_batches=1, more=more))
    # Three of them send what the next one receives.
    assert sum(part.kept_bytes for part in alone) == whole + 3 * HIDDEN_BYTES


SEQUENCE_PARALLEL = """\
tensor_parallel on tp {
  auto(sequence_parallel = true)
}
activation_checkpoint {
  "model.layers.*" -> full
}
"""


def test_stages_without_the_embedding_know_that_the_sequence_is_sharded(tmp_path: Path) -> None:
    """The embedding is what shards it."""
    path = pipelined(tmp_path, more=SEQUENCE_PARALLEL)
    path.write_text(path.read_text().replace("  pp = 2\n", "  pp = 2\n  tp = 2\n"))
    found = checked(path)
    assert found.graph is not None and found.inventory is not None
    whole = activations(rank_work(found.graph, found.inventory)).kept
    assert sum(activations(one).kept for one in stage_works(found.graph, found.inventory)) == whole


def test_code_around_layers_is_kept_by_the_ends_of_a_pipeline(tmp_path: Path) -> None:
    """It runs before the first layer and after the last; other stages pass hidden states on."""
    found = plan(tmp_path, pp=4)
    assert found.graph is not None and found.inventory is not None
    code = OwnCode(by_token=(8, 8))
    around = tuple(
        replace(one, own_code=code if one.fqn == "model" else one.own_code) for one in found.inventory.modules
    )
    works = stage_works(found.graph, replace(found.inventory, modules=around))
    kept = [work.cores["model"].code if "model" in work.cores else None for work in works]
    assert kept == [code, None, None, code]


def test_ranks_keep_as_much_as_they_have_in_flight(tmp_path: Path) -> None:
    """A loss in flight keeps its log-probabilities, [tokens, vocabulary] in float32. In these orders one
    message of each kind is under way."""
    alone = [part.kept_bytes for part in parts_of(plan(tmp_path, pp=4, micro_batches=1))]
    one = [*(kept - HIDDEN_BYTES for kept in alone[:3]), alone[3]]
    gpipe = parts_of(plan(tmp_path, pp=4, schedule="gpipe", micro_batches=8))
    assert [part.kept_bytes for part in gpipe[:3]] == [8 * kept + HIDDEN_BYTES for kept in one[:3]]
    assert gpipe[3].kept_bytes == 8 * one[3] + 7 * 64 * 260 * 4
    eager = parts_of(plan(tmp_path, pp=4, micro_batches=8))
    held = zip((4, 3, 2, 1), one, (1, 2, 2, 1), strict=True)
    assert [part.kept_bytes for part in eager] == [
        number * kept + messages * HIDDEN_BYTES for number, kept, messages in held
    ]
    interleaved = parts_of(plan(tmp_path, pp=2, schedule=SCHEDULES[2], micro_batches=8))
    # The first rank has stages 0 and 2. It holds three micro batches of its first stage, two of its other.
    assert interleaved[0].in_flight == 5
    most = max(3 * one[0] + 2 * one[2], 4 * one[0] + one[2])
    assert interleaved[0].kept_bytes == most + 4 * HIDDEN_BYTES


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_more_micro_batches_take_no_more_memory(tmp_path: Path, schedule: str) -> None:
    few, many = (estimate_of(plan(tmp_path, schedule=schedule, micro_batches=m)) for m in (8, 64))
    assert [one.memory.peak for one in few.ranks] == [one.memory.peak for one in many.ranks]


def test_deferred_gradients_keep_inputs_and_gradients_of_outputs(tmp_path: Path) -> None:
    """Of a layer 128 wide: the inputs of q, k and v, of o, of gate and up, and of down, which is 352 wide;
    the gradients of q, of k and v with half the heads, of o, of gate and up, and of down."""
    alone = parts_of(plan(tmp_path, pp=4, micro_batches=1))
    one = [part.kept_bytes - HIDDEN_BYTES for part in alone[:3]]
    deferred = parts_of(plan(tmp_path, pp=4, schedule="zero_bubble", micro_batches=8))
    left = 64 * 4 * ((128 + 128 + 128 + 352) + (128 + 64 + 64 + 128 + 352 + 352 + 128))
    # A backward comes before the weights of the micro batch as many before it as the rank's number.
    assert [part.kept_bytes for part in deferred[:3]] == [
        4 * one[0] + HIDDEN_BYTES,
        3 * one[1] + left + 2 * HIDDEN_BYTES,
        2 * one[2] + 2 * left + 2 * HIDDEN_BYTES,
    ]
    assert [part.deferred_bytes for part in deferred[:3]] == [
        3 * one[0] + left + HIDDEN_BYTES,
        2 * one[1] + 2 * left + 2 * HIDDEN_BYTES,
        one[2] + 3 * left + 2 * HIDDEN_BYTES,
    ]
    # The last stage has the head too, whose output is 260 wide.
    head = 64 * 4 * (128 + 260)
    assert deferred[3].deferred_bytes == 4 * (left + head) + HIDDEN_BYTES
    assert [part.in_flight for part in deferred] == [4, 4, 4, 4]
    assert all(part.deferred_bytes == 0 for part in parts_of(plan(tmp_path, pp=4)))


@pytest.mark.parametrize("micro_batches", [4, 8])
def test_deferred_gradients_make_a_step_shorter(tmp_path: Path, micro_batches: int) -> None:
    found = [
        work_of(plan(tmp_path, pp=4, schedule=schedule, micro_batches=micro_batches))
        for schedule in ("zero_bubble", "one_f_one_b")
    ]
    bounds = [step_bound(one, H100) for one in found]
    expected = [step_expectation(one, H100) for one in found]
    assert bounds[0] is not None and bounds[1] is not None
    assert bounds[0].compute_seconds < bounds[1].compute_seconds
    assert expected[0] is not None and expected[1] is not None
    assert expected[0].bubble_seconds < expected[1].bubble_seconds
    # The work is the same.
    assert found[0].matmul_flops == found[1].matmul_flops
    assert found[0].defers and not found[1].defers
    layers = [one for stage in (found[0].pipeline or pytest.fail()).stages for one in stage.matmuls]
    assert all(one.num_deferred == one.num_forward for one in layers)


def test_a_head_whose_loss_is_in_chunks_defers_nothing(tmp_path: Path) -> None:
    path = pipelined(tmp_path, pp=2, schedule="zero_bubble")
    text = path.read_text()
    path.write_text(text.replace("train {", "train {\n  loss_chunks = 4"))
    whole, chunked = [], []
    for found, names in ((checked(path), chunked), (plan(tmp_path, pp=2, schedule="zero_bubble"), whole)):
        assert found.graph is not None
        (split,) = (op for op in found.graph.setup if isinstance(op, SplitPipeline))
        names += split.deferred
    assert {*whole} - {*chunked} == {"lm_head"}


def test_only_the_last_stage_has_a_loss(tmp_path: Path) -> None:
    found = [loss(part.work).tensors for part in parts_of(plan(tmp_path, pp=4))]
    assert found[:3] == [0, 0, 0]
    assert found[3] == 3 * 64 * 260 * 4


def test_expectations_are_of_the_worst_rank(tmp_path: Path) -> None:
    found = estimate_of(plan(tmp_path, pp=4, micro_batches=8))
    peaks = [one.memory.peak.num_bytes for one in found.ranks]
    assert found.memory.peak.num_bytes == max(peaks) == peaks[0] > peaks[3]
    facts = estimated_facts(found)
    assert facts["peak_memory"] == max(peaks)
    assert facts["parameters_per_rank"] == max(one.num_local_parameters for one in found.ranks)
    assert facts["sent_bytes_per_step"] == max(one.sent_bytes() for one in found.ranks)


@pytest.mark.parametrize(
    ("pp", "schedule", "neighbors"), [(4, "gpipe", [1, 2, 2, 1]), (2, SCHEDULES[2], [3, 3])]
)
def test_stages_send_to_their_neighbors(tmp_path: Path, pp: int, schedule: str, neighbors: list[int]) -> None:
    found = estimate_of(plan(tmp_path, pp=pp, schedule=schedule, micro_batches=8))
    for one, number in zip(found.ranks, neighbors, strict=True):
        (sent,) = (each for each in one.collectives if each.kind is Kind.SEND)
        assert (sent.count, sent.input_bytes) == (8 * number, HIDDEN_BYTES)


@pytest.mark.parametrize(("schedule", "micro_batches"), [*product(SCHEDULES, (2, 8))])
def test_the_bound_is_below_the_expectation(tmp_path: Path, schedule: str, micro_batches: int) -> None:
    work = work_of(plan(tmp_path, schedule=schedule, micro_batches=micro_batches))
    bound, expected = step_bound(work, H100), step_expectation(work, H100)
    assert bound is not None and expected is not None and work.pipeline is not None
    assert bound.step_seconds < expected.fast_seconds < expected.step_seconds < expected.slow_seconds
    # Every rank computes its own part at the peak, and the first waits at least for that of the others.
    flops = [rank.matmul_flops + rank.attention.least for rank in work.pipeline.ranks]
    assert bound.compute_seconds >= max(flops) / (H100.peak_flops or 1) * 2
    parts = expected.compute_seconds + expected.exposed_seconds + expected.optimizer_seconds
    assert expected.step_seconds == pytest.approx(parts + expected.bubble_seconds)


def test_one_micro_batch_takes_the_time_of_all_stages(tmp_path: Path) -> None:
    """Nothing overlaps: the bound is the sum over stages, with a message each way between two of them."""
    work = work_of(plan(tmp_path, pp=4, micro_batches=1))
    assert work.pipeline is not None
    flops = sum(rank.matmul_flops + rank.attention.least for rank in work.pipeline.ranks)
    found = step_bound(work, H100, devices_per_node=8)
    assert found is not None and H100.peak_flops and H100.link_bandwidth
    # float32 computes at half the peak, as TensorFloat-32; the first rank ends last.
    expected = 2 * flops / H100.peak_flops + 6 * HIDDEN_BYTES / H100.link_bandwidth
    assert found.compute_seconds == pytest.approx(expected)


def test_the_command_prints_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(pipelined(tmp_path, pp=4, micro_batches=8))
    assert main(["estimate", path, "--gpu", "h100"]) == 0
    text = capsys.readouterr().out
    assert "MEMORY OF PP RANK 0, at the peak" in text
    assert "Each figure is for the pp rank with the most of it.\n" in text
    assert "COMMUNICATION PER STEP, OF PP RANK 1\n" in text
    assert "the busiest pp rank waits for others" in text
    assert main(["estimate", path, "--output-format", "json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert [(rank["pp_rank"], rank["stages"], rank["in_flight"]) for rank in ranks] == [
        (0, [0], 4),
        (1, [1], 3),
        (2, [2], 2),
        (3, [3], 1),
    ]
