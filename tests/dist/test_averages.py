"""Moving averages of weights are torch's own over whole weights, bit for bit, on every mesh."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from planc.graph.ops import BuildAverages, UpdateAverages
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.interpreter import Position
from planc.runtime.torch.checkpoint.chunks import ChunkReader
from planc.runtime.torch.state import Update, Verdict, Weights
from planc.runtime.torch.training.averages import build_averages, take_averages, update_averages
from tests.dist.saving import train_saving
from tests.parity.cases import NUM_STEPS, PP2_DP2, SAVE_STEP, TP2_DP2, Case

DECAY = 0.9
KEEPS = (f"train.ema_decay={DECAY}", "checkpoint.save_every=1 steps", "checkpoint.export.hf.weights=ema")
FROZEN = ("model.embed_tokens",)
ONE = Case("1", settings=KEEPS, frozen=FROZEN)
TP = Case("TP2·DP2", mesh=TP2_DP2, settings=KEEPS, frozen=FROZEN)
UNEVEN = Case("DP4", "257 rows", {"dp_shard": 4}, model="llama-uneven", settings=KEEPS, frozen=FROZEN)
PP = Case("PP2·DP2", mesh=PP2_DP2, micro_batch=1, settings=KEEPS, frozen=FROZEN)
TAKEN = Verdict(loss=0.0, gradient_norm=0.0, num_labels=1, is_skipped=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_averages_are_torchs_own_and_leave_frozen_weights_and_skipped_steps(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)).to(dtype)
    model[1].bias.requires_grad_(False)
    weights, run = Weights.of(model), None
    averages = build_averages(run, BuildAverages(), weights)  # type: ignore[arg-type]
    assert [name for name, weight in weights.parameters.items() if weight not in averages.by_parameter] == [
        "1.bias"
    ]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = {weight: weight.detach().to(wide).clone() for weight in averages.by_parameter}
    exact = {weight: weight.detach().double().clone() for weight in averages.by_parameter}
    for step in range(1, 6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        verdict = replace(TAKEN, is_skipped=step == 3)
        op, at = UpdateAverages(ema_decay=DECAY), Position(step)
        update_averages(run, op, at, averages, weights, verdict, Update(step))  # type: ignore[arg-type]
        for weight in expected if step != 3 else ():
            expected[weight] = torch.lerp(expected[weight], weight.detach().to(wide), 1 - DECAY)
            exact[weight] = DECAY * exact[weight] + (1 - DECAY) * weight.detach().double()
    for weight, average in averages.by_parameter.items():
        assert average.dtype == wide and torch.equal(average, expected[weight])
        assert torch.allclose(average.double(), exact[weight], rtol=1e-6, atol=1e-6)
    kept = model[1].bias.detach().clone()
    take_averages(averages, weights)
    assert all(torch.equal(weight, average.to(dtype)) for weight, average in averages.by_parameter.items())
    assert torch.equal(model[1].bias, kept)


def saved(folder: Path, *, step: int) -> Mapping[str, Tensor]:
    directory = step_directory(folder / "checkpoints", step=step)
    manifest = read_manifest(directory)
    reader = ChunkReader(directory, manifest)
    return {name: reader.whole(name) for name in manifest.tensors}


@pytest.mark.slow
@pytest.mark.parametrize(("saver", "resumer"), [(ONE, TP), (TP, PP), (PP, ONE), (UNEVEN, UNEVEN)])
def test_averages_follow_the_weights_of_each_step_and_resume_on_another_mesh(
    saver: Case, resumer: Case, workspace: Path, tmp_path: Path
) -> None:
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    train_saving(saver, workspace=workspace, run_folder=whole)
    shutil.copytree(
        step_directory(whole / "checkpoints", step=SAVE_STEP),
        step_directory(copy / "checkpoints", step=SAVE_STEP),
    )
    assert train_saving(resumer, workspace=workspace, run_folder=copy).first_step == SAVE_STEP + 1
    for folder, first in ((whole, 2), (copy, SAVE_STEP + 1)):
        before = saved(folder, step=first - 1)
        averages = {name: tensor for name, tensor in before.items() if name.startswith("ema.")}
        trained = {name.removeprefix("ema.") for name in averages}
        assert trained == {name[6:] for name in before if name.startswith("model.")} - {f"{FROZEN[0]}.weight"}
        for step in range(first, NUM_STEPS + 1):
            now = saved(folder, step=step)
            for name, average in averages.items():
                averages[name] = torch.lerp(average, now[f"model.{name.removeprefix('ema.')}"], 1 - DECAY)
                assert torch.equal(averages[name], now[name]), (step, name)
        exported = load_file(folder / "export" / "hf" / "model.safetensors")
        assert all(torch.equal(exported[name], averages[f"ema.{name}"]) for name in trained)
        assert torch.equal(exported[f"{FROZEN[0]}.weight"], now[f"model.{FROZEN[0]}.weight"])


@pytest.mark.slow
def test_averages_begin_at_the_weights_of_a_checkpoint_without_them(workspace: Path, tmp_path: Path) -> None:
    plain = replace(ONE, settings=("checkpoint.save_every=1 steps",))
    train_saving(plain, workspace=workspace, run_folder=tmp_path / "plain")
    copied = step_directory(tmp_path / "run" / "checkpoints", step=SAVE_STEP)
    shutil.copytree(step_directory(tmp_path / "plain" / "checkpoints", step=SAVE_STEP), copied)
    train_saving(TP, workspace=workspace, run_folder=tmp_path / "run")
    start, first = (saved(tmp_path / "run", step=step) for step in (SAVE_STEP, SAVE_STEP + 1))
    assert not any(name.startswith("ema.") for name in start)
    averages = [name for name in first if name.startswith("ema.")]
    assert averages
    for name in averages:
        weight = f"model.{name.removeprefix('ema.')}"
        assert torch.equal(first[name], torch.lerp(start[weight], first[weight], 1 - DECAY)), name
    # Dropped again.
    shutil.copytree(
        step_directory(tmp_path / "run" / "checkpoints", step=NUM_STEPS - 1),
        step_directory(tmp_path / "dropped" / "checkpoints", step=NUM_STEPS - 1),
    )
    assert train_saving(plain, workspace=workspace, run_folder=tmp_path / "dropped").first_step == NUM_STEPS
    assert not any(name.startswith("ema.") for name in saved(tmp_path / "dropped", step=NUM_STEPS))
