"""What a run of four ranks tells: metrics, each rank's log, traces. One run serves all tests."""

from __future__ import annotations

import gzip
import json
import re
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from planc.estimate.estimate import estimate
from planc.figures import needs
from planc.figures import plan as of_plan
from tests.figures.views import written_numbers
from tests.launch.processes import Outcome, start, without_torchrun
from tests.plans import checked, write_plan

REPORTING = """
hardware {
  gpu = h100
}

logging {
  per_rank = true
}

profile {
  first_step = 2
  last_step = 3
}
"""
ONE_RANK = """\
model {
  hf = "models/tiny-llama"
}

data {
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 1
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 2
}

"""
EDITS = (
    ("steps = 60", "steps = 4"),
    ("save_every = 30 steps", "save_every = 2 steps"),
    ("warmup = 10 steps", "warmup = 1 steps"),
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_plan(tmp_path_factory.mktemp("reporting"), edits=EDITS)
    path.write_text(path.read_text() + REPORTING)
    return path


@pytest.fixture(scope="module")
def finished(plan: Path) -> tuple[Path, Outcome]:
    """The run's folder, and how rank 0 ended."""
    folder = plan.parent / "run"
    return folder, without_torchrun(*[(str(plan), "--run-dir", str(folder))] * 4)[0]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_with_all_of_it_ends_well(finished: tuple[Path, Outcome]) -> None:
    _, outcome = finished
    assert outcome.code == 0, outcome.stderr


def test_a_run_prints_the_figures_that_a_check_prints(finished: tuple[Path, Outcome], plan: Path) -> None:
    """Its banner, what it says as it builds the model, and its metrics."""
    found = checked(plan)
    graph, inventory = found.graph, found.inventory
    assert graph is not None and inventory is not None
    number = r"([\d_]+)"
    printed = written_numbers(
        finished[1].stdout,
        {
            "world_size": rf"\({number} ranks, cpu",
            "modules_over_tp": rf"layout +{number} modules sharded over tp",
            "fsdp_units": rf"sharded over tp, {number} FSDP units",
            "parameters": rf"model: \w+, {number} parameters",
            "parameters_per_rank": rf"rank 0 holds {number} parameters",
        },
    )
    figures = (
        of_plan.world_size(graph),
        of_plan.sharded_modules(graph),
        of_plan.fsdp_units(graph),
        of_plan.parameters(inventory.num_parameters),
        needs.parameters_per_rank(estimate(graph, inventory)),
    )
    assert printed == {figure.name: figure.value for figure in figures}
    metrics = lines(finished[0] / "metrics.jsonl")
    assert {line["tokens"] for line in metrics} == {of_plan.tokens_per_step(graph).value}
    for line in metrics:
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["tokens_per_second_per_device"] == pytest.approx(line["tokens_per_second"] / 4)
    assert re.search(r" tokens/s  \S+ TFLOP/s/device  .*iB process", finished[1].stdout)


def test_metrics_tell_flops_and_the_time_of_each_phase(finished: tuple[Path, Outcome]) -> None:
    found = lines(finished[0] / "metrics.jsonl")
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert all(line["tflops_per_second_per_device"] > 0 for line in found)
    assert all(line["memory_kind"] == "process" for line in found)
    phases = found[2]["phase_seconds"]
    assert all(phases[name] > 0 for name in ("data", "forward", "backward", "optimizer", "checkpoint"))
    assert phases["checkpoint"] > found[1]["phase_seconds"]["checkpoint"] == 0, "saved after step 2"


def test_a_processor_has_no_share_of_an_accelerators_peak(finished: tuple[Path, Outcome]) -> None:
    assert all("mfu" not in line for line in lines(finished[0] / "metrics.jsonl"))


def test_each_rank_writes_its_own_steps_with_its_place_in_the_mesh(finished: tuple[Path, Outcome]) -> None:
    places = []
    for rank in range(4):
        found = lines(finished[0] / "logs" / f"rank-{rank}.jsonl")
        assert {line["rank"] for line in found} == {rank}
        assert [line["step"] for line in found if line["event"] == "step"] == [1, 2, 3, 4]
        places.append(tuple(found[0]["mesh"].values()))
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_trace_holds_the_plans_own_ops_with_their_lines(finished: tuple[Path, Outcome], plan: Path) -> None:
    traces = sorted((finished[0] / "profile").iterdir())
    assert [path.name for path in traces] == [f"step-2-rank-{rank}.json.gz" for rank in range(4)]
    events = json.loads(gzip.decompress(traces[3].read_bytes()))["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert sum(name.startswith("optimizer.step ") for name in names) == 2, "of two steps"
    assert any(name.startswith(f"forward {plan}:") for name in names)


def test_no_record_of_where_ranks_were_stays(finished: tuple[Path, Outcome]) -> None:
    assert not (finished[0] / "ranks").exists()


def one_rank(folder: Path, block: str) -> str:
    """The path of a plan for one process, with a block more."""
    return str(write_plan(folder, text=ONE_RANK + block))


def test_a_memory_snapshot_is_refused_where_there_is_no_device(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "profile {\n  first_step = 1\n  last_step = 1\n  memory = true\n}\n")
    outcome = start(sys.executable, "-m", "planc.run", path, "--run-dir", str(tmp_path / "run"))
    assert outcome.code == 2
    assert "profile.memory records CUDA memory, but this run is on CPUs" in outcome.stderr


@pytest.mark.skipif(util.find_spec("wandb") is not None, reason="it is installed")
def test_a_tracker_without_its_package_is_refused_before_torch_is_imported(
    tmp_path: Path, no_torch: Path
) -> None:
    path = one_rank(tmp_path, 'logging {\n  tracker "wandb" { project = "tiny" }\n}\n')
    outcome = start(sys.executable, "-m", "planc.run", path, first_on_path=no_torch)
    assert outcome.code == 2
    assert "wandb 0.19 or newer" in outcome.stderr
    assert "pip install 'planc[wandb]'" in outcome.stderr


@pytest.mark.slow
def test_a_compiled_run_counts_its_graphs(tmp_path: Path) -> None:
    """After the first step its only new graph is that of an evaluation, which needs no gradients."""
    held_out = (
        'eval "held_out" {\n    source = python_stdlib()\n    sequences = 1\n    every = 2 steps\n  }\n'
    )
    text = ONE_RANK.replace("  micro_batch = 1\n", f"  micro_batch = 1\n  {held_out}")
    compilation = 'compile {\n  backend = eager\n  "model.layers.*" -> region\n}\n'
    path, run_folder = write_plan(tmp_path, text=text + compilation), tmp_path / "run"
    outcome = start(sys.executable, "-m", "planc.run", str(path), "--run-dir", str(run_folder))
    assert outcome.code == 0, outcome.stderr
    assert [line for line in outcome.stdout.splitlines() if "torch.compile" in line] == [
        "torch.compile made 3 graphs of 4 modules and the loss",
        "evaluation held_out after step 2: torch.compile made 1 more graph: GLOBAL_STATE changed: grad_mode",
    ]
    assert [one["compiled_graphs"] for one in lines(run_folder / "metrics.jsonl")] == [3, 4]
