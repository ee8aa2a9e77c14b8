"""A training loop of one's own over a checked plan, beside a run of the same plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.own_loop import require_understood
from planc.graph.graph import Graph
from tests.bench.shapes import Shape, compile_shape, make_workspace, plan_text
from tests.patience import WAIT_SECONDS

NUM_STEPS = 12
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("script"))


def launched(*arguments: str | Path, num_ranks: int, folder: Path) -> str:
    """What torchrun's ranks print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape({"dp_shard": 2}), id="dp_shard 2"),
        pytest.param(Shape({"dp_replicate": 2, "dp_shard": 2}), id="dp_replicate 2 dp_shard 2"),
    ],
)
def test_a_loop_of_ones_own_trains_as_planc_runs(shape: Shape, workspace: Path) -> None:
    name = shape.name.replace(" ", "")
    plan, run = workspace / f"{name}.plan", workspace / name
    text = plan_text(shape, num_steps=NUM_STEPS)
    if "dp_replicate" in shape.mesh:
        text = text.replace("fsdp on dp_shard, cp {", "fsdp on dp_shard, cp {\n  replicate_on = dp_replicate")
    plan.write_text(text)
    num_ranks = shape.world_size
    printed = launched(ROOT / "examples/own_loop.py", plan, num_ranks=num_ranks, folder=workspace)
    launched("-m", "planc.run", plan, "--run-dir", run, num_ranks=num_ranks, folder=workspace)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = [row for row in metrics if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    # The two sum float32 in other orders.
    for figure in ("loss", "grad_norm"):
        assert [row[figure] for row in rows] == pytest.approx([row[figure] for row in expected], rel=2e-5)


def graph_of(shape: Shape, workspace: Path) -> Graph:
    return compile_shape(shape, num_steps=NUM_STEPS, workspace=workspace)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        pytest.param(Shape({"tp": 2}), "tp.shard", id="tensor parallelism"),
        pytest.param(Shape({"cp": 2}), "cp", id="context parallelism"),
        pytest.param(Shape({"dp_replicate": 2}), "grads.all_reduce", id="replicas without FSDP"),
    ],
)
def test_a_plan_that_asks_for_more_is_refused(shape: Shape, named: str, workspace: Path) -> None:
    with pytest.raises(ValueError, match=f"this loop has no .*{named}"):
        require_understood(graph_of(shape, workspace))
