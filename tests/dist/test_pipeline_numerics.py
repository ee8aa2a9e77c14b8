"""NaN that one stage of a pipeline makes and the last one finds: the message names the first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn

from planc.runtime.errors import ExitCode
from planc.runtime.interpreter import run
from planc.runtime.torch.backend import TorchBackend, shares_of_ranks
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from tests.dist.faulty_steps import Fault, Listening, run_faulty
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Task, open_run

PP4 = Case("PP4", "", {"pp": 4}, model="llama-deep", micro_batch=1)
PP2 = Case("PP2", "", {"pp": 2}, model="llama-deep", micro_batch=2)
PLACES: Mapping[str, tuple[Case, int, str, int]] = {
    "gpipe": (replace(PP4, schedule="gpipe"), 1, "model.layers.1", 1),
    "one_f_one_b": (replace(PP4, schedule="one_f_one_b"), 2, "model.layers.2", 2),
    "interleaved": (replace(PP2, schedule="interleaved(stages_per_rank = 2)"), 0, "model.layers.2", 2),
    "zero_bubble": (replace(PP2, schedule="zero_bubble"), 0, "model.layers.1", 0),
    "tp": (
        Case("PP2·TP2", "", {"pp": 2, "tp": 2}, model="llama-deep", micro_batch=2),
        1,
        "model.layers.0",
        0,
    ),
    "fsdp": (
        Case(
            "PP2·DP2", "", {"pp": 2, "dp_shard": 2}, model="llama-deep", micro_batch=2, recomputation="full"
        ),
        2,
        "model.layers.2",
        1,
    ),
}
"""The rank and the layer that make NaN, and their stage, by what is particular."""


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", PLACES)
def test_the_first_layer_with_nan_in_its_outputs_is_named(name: str, workspace: Path) -> None:
    case, rank, layer, stage = PLACES[name]
    fault = Fault("", (2,), "output", rank=rank, module=f"{layer}.mlp", micro_step=1)
    told = run_faulty(workspace, case, fault)
    assert {one.code for one in told} == {ExitCode.NUMERICS}
    assert [one.states[-1] == one.states[1] for one in told] == [True] * len(told)
    place = f"{layer} (stage {stage}) was the first to put out NaN or inf, on rank"
    assert f"at step 2, and no weight was changed: {place}" in told[0].message
    assert told[0].message.count("micro-batch 1 (sequence") == told[0].message.count("micro-batch") >= 1
    assert "(cpu)" in told[0].message and ": loss nan" not in told[0].message
    assert "inspect these sequences" not in told[0].help
    assert f"suspect the device of rank {rank}" in told[0].help
    entries = {one["rank"]: one for one in told[0].record["numerics"]["ranks"]}
    assert (entries[rank]["outputs"][0]["module"], entries[rank]["device"]) == (layer, "cpu")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_the_one_step_of_a_guard_that_skips_names_it_too(workspace: Path, value: float) -> None:
    fault = Fault("", (3,), "output", value=value, rank=1, module="model.layers.1.mlp")
    told = run_faulty(workspace, PP4, fault, "guard.nonfinite=skip")
    assert {one.code for one in told} == {None}
    (text,) = [text for text in told[0].noted if "is skipped" in text]
    assert text.startswith("step 3 is skipped: the loss is nan")
    assert (
        "; model.layers.1 (stage 1) was the first to put out NaN or inf, on rank 1 (cpu), for micro-b" in text
    )


@pytest.mark.parametrize("name", ["one_f_one_b", "zero_bubble"])
def test_gradients_that_become_nan_on_their_way_back_are_named_by_layer(name: str, workspace: Path) -> None:
    case, rank, layer, _ = PLACES[name]
    fault = Fault("", (2,), "gradient", rank=rank, module=f"{layer}.mlp", micro_step=1)
    told = run_faulty(workspace, case, fault)
    assert {one.code for one in told} == {ExitCode.NUMERICS}
    assert "the gradient norm is nan at step 2, and no weight was changed: " + layer in told[0].message
    assert f" is the last parameter with NaN or inf in its gradient, on rank {rank}" in told[0].message
    assert told[0].help == "lower the learning rate, or let `guard` skip such steps"


def test_without_a_pipeline_a_gradient_is_named_too(workspace: Path) -> None:
    case = Case("TP2", "", {"tp": 2}, model="llama-deep")
    fault = Fault("", (2,), "gradient", rank=1, module="model.layers.1.mlp")
    told = run_faulty(workspace, case, fault)
    assert {one.code for one in told} == {ExitCode.NUMERICS}
    assert "model.layers.1." in told[0].message
    assert "is the last parameter with NaN or inf in its gradient" in told[0].message


def test_a_loss_of_finite_outputs_is_the_last_stages_own(workspace: Path) -> None:
    fault = Fault("", (2,), "output", rank=3, module="lm_head", micro_step=2)
    told = run_faulty(workspace, PP4, fault)
    assert "rank 3, micro-batch 2 (sequence" in told[0].message and "loss nan" in told[0].message
    assert told[0].help.startswith("inspect these sequences")


def test_weights_are_named_with_the_layer_that_they_spoil(workspace: Path) -> None:
    case = replace(PP2, schedule="one_f_one_b")
    fault = Fault("batch.next", (2,), "weight", rank=0)
    told = run_faulty(workspace, case, fault)
    assert "model.layers.1 (stage 0) was the first to put out NaN or inf, on rank 0 (cpu)" in told[0].message
    assert "model.layers.1.mlp.up_proj.weight itself is NaN or inf on rank 0" in told[0].message
    assert told[0].help.startswith("check that the initial weights are finite")


def shares(rank: int, world_size: int, task: Task) -> tuple[float, ...] | None:
    backend = TorchBackend(open_run(task, Listening()))
    run(task.graph, backend, stop_after=1)
    state = backend.state
    found = shares_of_ranks(backend.run, state[Mesh], state[nn.Module], state[Pipeline])
    dist.destroy_process_group()
    return found


HEAD = 260 * 64 / (64 * 128 * 2 + 64 * 64 * 2 + 64 * 176 * 3 + 64 * 2)
"""Its parameters over those of a layer, of the model `llama-deep`."""


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpipe", (1, 1, 1, 1 + HEAD)),
        ("interleaved", (2, 2 + HEAD)),
        ("tp", (2, 2, 2 + HEAD, 2 + HEAD)),
        ("fsdp", (2, 2, 2 + HEAD, 2 + HEAD)),
    ],
)
def test_ranks_share_the_work_of_a_step_as_their_stages_do(
    name: str, expected: tuple[float, ...], workspace: Path, tmp_path: Path
) -> None:
    case, *_ = PLACES[name]
    task = Task(compile_case(case, workspace=workspace), workspace, tmp_path)
    for found in run_ranks(shares, case.world_size, task, init=False):
        assert found == pytest.approx(expected)
