"""Callbacks and metrics under torchrun: on every mesh the values of one process, and errors that end all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.processes import start
from tests.plans import write_plan
from tests.python.conftest import TEXT
from tests.python.test_torchrun import torchrun

READS = """\
import json, os, sys
import planc
from tests.python.readers import Tensors, biggest, cosine, ones, rank_mean

plan, folder = sys.argv[1:]
tensors = Tensors()
metrics = [biggest, cosine(), ones, rank_mean]
planc.run(plan, run_dir=folder, callbacks=[tensors], metrics=metrics, overrides=["train.steps=3"], quiet=True)
with open(f"{folder}/sums-{os.environ.get('RANK', '0')}.json", "w") as file:
    json.dump(tensors.sums, file)
"""
FSDP = 'fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n'
TP = "tensor_parallel on tp {\n  auto\n}\n"
PP = "pipeline on pp {\n  schedule = one_f_one_b\n}\n"
MESHES = {
    "dp_shard 2 x tp 2": ("dp_shard = 2\n  tp = 2", FSDP + TP, 4),
    "pp 2": ("pp = 2", PP, 2),
}


def read(folder: Path, name: str, text: str, *, num_ranks: int) -> tuple[list[Any], list[Any]]:
    """What each rank's callback read, and the lines of metrics.jsonl."""
    script, run = folder / "reads.py", folder / f"run {name}"
    script.write_text(READS)
    plan = write_plan(folder, name=f"{name.replace(' ', '_')}.plan", text=text)
    if num_ranks == 1:
        done = start(sys.executable, str(script), str(plan), str(run))
    else:
        done = torchrun(str(script), str(plan), str(run), num_ranks=num_ranks)
    assert done.code == 0, done.stderr
    lines = [json.loads(line)["custom"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [json.loads((run / f"sums-{rank}.json").read_text()) for rank in range(num_ranks)], lines


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_whole_tensors_and_metrics_are_those_of_one_process(name: str, plan: Path) -> None:
    mesh, blocks, num_ranks = MESHES[name]
    text = TEXT.replace("data {", f"mesh {{\n  {mesh}\n}}\n\n{blocks}\ndata {{")
    text = text.replace("micro_batch = 2", "micro_batch = 1")
    ranks, lines = read(plan.parent, name, text, num_ranks=num_ranks)
    ((alone,), alone_lines) = read(plan.parent, "alone", TEXT, num_ranks=1)
    assert all(rank == ranks[0] for rank in ranks[1:])
    for step, expected in zip(ranks[0], alone, strict=True):
        assert step.keys() == expected.keys() and len(step) > 70
        for tensor, values in step.items():
            assert values == pytest.approx(expected[tensor], rel=2e-4, abs=2e-5), tensor
    for line, expected in zip(lines, alone_lines, strict=True):
        assert line.pop("ones") == num_ranks and expected.pop("ones") == 1
        assert line.pop("rank_mean") == (num_ranks - 1) / 2 and expected.pop("rank_mean") == 0
        assert line == pytest.approx(expected, rel=2e-4)


FAULTS = """\
import os, sys
import planc

class Faulty(planc.Callback):
    ranks = "{ranks}"

    def on_step(self, step):
        {body}

callbacks = [Faulty()] if {condition} else []
overrides = ["mesh.dp_replicate=2"]
planc.run(sys.argv[1], run_dir=sys.argv[2], overrides=overrides, callbacks=callbacks, quiet=True)
"""
ON_RANK_1 = "step.step < 2 or step.rank < 1 or [][step.rank]"
WEIGHT = 'step.parameter("model.norm.weight")'
IS_RANK_0 = 'os.environ["RANK"] == "0"'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "body", "condition", "text"),
    [
        ("all", ON_RANK_1, "True", "raised IndexError in on_step (step 2, rank 1): list index out of range"),
        ("zero", WEIGHT, "True", 'tensors are gathered over all ranks: set `ranks = "all"`'),
        ("all", "pass", IS_RANK_0, "the list of callbacks and metrics"),
    ],
    ids=["raises on one rank", "gathers on rank 0", "ranks differ"],
)
def test_a_fault_ends_all_ranks_and_is_named(
    ranks: str, body: str, condition: str, text: str, plan: Path, tmp_path: Path
) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTS.format(ranks=ranks, body=body, condition=condition))
    done = torchrun(str(script), str(plan), str(tmp_path / "run"))
    assert done.code == 1
    assert text in done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
