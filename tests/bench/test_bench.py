"""The bench's rivals compute what planc computes, and its figures are of what ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from planc.runtime.interpreter import run
from planc.runtime.torch.backend import TorchBackend
from planc.verify.pool import run_ranks
from planc.verify.ranks import Metrics, Task, open_run
from tests.bench import footprint, loading, overhead
from tests.bench.footprint import Side
from tests.bench.loading import sampled
from tests.bench.meter import Footprint, Meter
from tests.bench.page import page
from tests.bench.race import PIPELINES, REPLICAS, Race, rival_trainer, run_race
from tests.bench.result import Result, read_results, report, write_results
from tests.bench.shapes import AUTO, EXPERTS, MODEL, SHAPES, Shape, compile_shape, make_workspace
from tests.bench.throughput import Ratio, over_ranks, ratio
from tests.slow import slow_except

NUM_STEPS = 3
WEIGHTS = "model.safetensors"
QUICK = (Shape({"dp_shard": 2, "tp": 2}),)
ROW = Result("dp_shard 2, by_hand", ("10", "20", "0.5", "0.5"), goal=">= 0.99", is_met=False)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("bench"))


def losses_of_both(
    rank: int, world_size: int, race: Race, folder: Path, num_steps: int
) -> tuple[list[float], list[float]]:
    """planc's losses and the rival's, of the same sequences from the same weights."""
    metrics = Metrics()
    own = open_run(Task(race.graph, race.workspace, folder), metrics)
    run(race.graph, TorchBackend(own), stop_after=num_steps)
    trainer = rival_trainer(race)
    rival = [trainer.step(torch.tensor(step.sample_ids)) for step in metrics.steps]
    dist.destroy_process_group()
    return [step.loss for step in metrics.steps], rival


def losses(race: Race, folder: Path, *, num_steps: int) -> tuple[list[float], list[float]]:
    found = run_ranks(losses_of_both, race.shape.world_size, race, folder, num_steps, init=False)
    return found[0]


def make_race(shape: Shape, rival: str, workspace: Path, *, num_steps: int = 100) -> Race:
    graph = compile_shape(shape, num_steps=num_steps, workspace=workspace)
    return Race(shape, graph, rival, workspace, num_steps_a_block=1)


def shapes() -> Sequence[object]:
    marks = ((shape, () if shape in QUICK else pytest.mark.slow) for shape in SHAPES)
    return [pytest.param(shape, marks=mark, id=shape.name) for shape, mark in marks]


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes())
def test_by_hand_computes_what_the_plan_computes(shape: Shape, workspace: Path, tmp_path: Path) -> None:
    race = make_race(shape, "by_hand", workspace)
    planc, by_hand = losses(race, tmp_path, num_steps=NUM_STEPS)
    assert len(planc) == NUM_STEPS and planc == pytest.approx(by_hand, rel=1e-5)
    assert planc[-1] < planc[0]


@pytest.mark.slow
@pytest.mark.parametrize("shape", AUTO, ids=lambda one: one.auto)
def test_transformers_own_parallelism_starts_from_the_plans_loss(shape: Shape, tmp_path: Path) -> None:
    race = make_race(shape, "tp_plan", make_workspace(tmp_path, with_large=True))
    planc, rival = losses(race, tmp_path / "run", num_steps=1)
    assert planc == pytest.approx(rival, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", EXPERTS, ids=lambda one: one.name)
def test_transformers_own_experts_compute_what_the_plan_computes(
    shape: Shape, workspace: Path, tmp_path: Path
) -> None:
    """In the first step; after it the schedules differ."""
    planc, rival = losses(make_race(shape, "ep_plan", workspace), tmp_path, num_steps=1)
    assert planc == pytest.approx(rival, rel=1e-5)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mesh_dim", ["dp_shard", "dp_replicate"])
def test_straightforward_starts_from_the_plans_loss(mesh_dim: str, workspace: Path, tmp_path: Path) -> None:
    race = make_race(Shape({mesh_dim: 2}), "straightforward", workspace)
    planc, straightforward = losses(race, tmp_path, num_steps=1)
    assert planc == pytest.approx(straightforward, rel=1e-5)


@pytest.mark.parametrize("rival", REPLICAS)
def test_a_rival_of_replicas_starts_from_the_plans_loss(rival: str, workspace: Path, tmp_path: Path) -> None:
    if rival != "ddp":
        pytest.importorskip("accelerate", reason="`pip install -e '.[bench]'` installs it")
    race = make_race(Shape({"dp_replicate": 2}), rival, workspace)
    planc, other = losses(race, tmp_path, num_steps=1)
    assert planc == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rival", PIPELINES)
def test_a_rival_of_pipelines_computes_what_the_plan_computes(
    rival: str, workspace: Path, tmp_path: Path
) -> None:
    race = make_race(Shape({"pp": 2}), rival, workspace)
    planc, other = losses(race, tmp_path, num_steps=NUM_STEPS)
    assert planc == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
def test_a_race_has_blocks_of_both_sides(workspace: Path) -> None:
    race = make_race(Shape({}), "by_hand", workspace, num_steps=12)
    (blocks,) = run_ranks(run_race, 1, race, init=False)
    assert len(blocks.planc) == len(blocks.rival) == 12
    assert min(one.processor_seconds for one in (*blocks.planc, *blocks.rival)) > 0
    assert len(over_ranks([blocks.planc])) == 11


def test_a_ratio_above_one_says_that_planc_is_faster() -> None:
    assert ratio((1.0, 2.0, 1.0), (2.0, 4.0, 2.0)) == Ratio(2.0, 2.0, 2.0)


def test_a_disturbed_block_moves_no_ratio_and_widens_no_interval() -> None:
    even = [1.0] * 99
    assert ratio([*even, 50.0], [*even, 1.0]) == Ratio(1.0, 1.0, 1.0)


def test_the_interval_of_a_ratio_tells_how_far_blocks_decide_it() -> None:
    uneven = [1.0, 1.2] * 20
    found = ratio(uneven, reversed(uneven))
    assert found.value == 1
    assert 0.8 < found.low < 0.99
    assert 1.01 < found.high < 1.25


def test_the_overhead_is_measured_with_a_handler_for_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "NUM_STEPS", 20)
    monkeypatch.setattr(overhead, "NUM_RUNS", 1)
    interpreter, backend = (float(one.cells[0]) for one in overhead.measure())
    assert 0 < interpreter < backend


def test_the_most_that_was_held_is_seen_after_it_is_gone() -> None:
    with sampled() as sampler:
        before = sampler.allocated
        torch.ones(2**25).sum()
    assert sampler.allocated - before > 100e6


@pytest.mark.slow
@pytest.mark.parametrize("shape", loading.SHAPES, ids=lambda shape: shape.name)
def test_a_rank_holds_its_shard_and_little_more_while_it_loads(shape: Shape, tmp_path: Path) -> None:
    """Of a model of 1.2 GB, which would be too much by itself."""
    folder = loading.make_workspace(tmp_path)
    for held in run_ranks(loading.load, shape.world_size, folder, shape, "planc", init=False):
        assert held.shard <= held.peak_allocated <= held.shard + loading.ALLOWANCE_BYTES
        assert held.shard + loading.ALLOWANCE_BYTES < 1.2e9


def footprint_of_all_reduce(rank: int, world_size: int, num_elements: int) -> Footprint | None:
    """Of a step that allocates a tensor, reduces it and frees it. The step before does the same."""
    meter = Meter(num_warm_up=1, num_steps=1)
    for step in range(1, meter.last_step + 1):
        meter.begins(step)
        if step < meter.last_step:
            dist.all_reduce(torch.ones(num_elements))
    return meter.footprint


@pytest.mark.parametrize("world_size", slow_except((2, 4), "2"))
def test_the_kernel_counts_the_bytes_of_an_all_reduce(world_size: int) -> None:
    num_bytes = 2**24
    found = run_ranks(footprint_of_all_reduce, world_size, num_bytes // 4)
    for one in found:
        assert one is not None
        assert one.sent_bytes == pytest.approx(2 * (world_size - 1) / world_size * num_bytes, rel=1e-3)
        assert num_bytes <= one.peak_bytes < 3 * num_bytes


@pytest.mark.slow
def test_planc_and_by_hand_send_as_much_and_hold_about_as_much(workspace: Path) -> None:
    shape = Shape({"dp_shard": 2})
    planc, by_hand = (
        footprint.measure(shape, side=side, workspace=workspace) for side in ("planc", "by_hand")
    )
    assert planc.sent_bytes == pytest.approx(by_hand.sent_bytes, rel=1e-3)
    assert planc.peak_bytes == pytest.approx(by_hand.peak_bytes, rel=0.1)
    # Weights, gradients and two moments, each half on this rank.
    assert min(planc.peak_bytes, by_hand.peak_bytes) > 4 * (workspace / MODEL / WEIGHTS).stat().st_size / 2


def test_only_a_rival_with_the_same_shards_sets_a_goal_for_memory() -> None:
    shape, most, other = Shape({"dp_shard": 2}), Side(112, 1.0), Side(100, 1.0)
    assert footprint.result(shape, rival="by_hand", planc=most, other=other).verdict == "MISSED"
    assert footprint.result(shape, rival="straightforward", planc=most, other=other).verdict == ""


def test_results_are_kept_by_section(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results("throughput", [ROW], path=path)
    write_results("overhead", [Result("interpreter", ("5",))], path=path)
    assert read_results(path) == {"throughput": [ROW], "overhead": [Result("interpreter", ("5",))]}


def test_a_missed_goal_shows_on_the_page_and_in_the_exit_code() -> None:
    text = page({"throughput": [ROW]}, date="2026-11-21")
    assert "| dp_shard 2, by_hand | 10 | 20 | 0.5 | 0.5 | >= 0.99 | MISSED |" in text
    assert report([ROW]) == 1
