"""By equal gradients, Muon on every mesh is torch.optim.Muon on whole matrices, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.runtime.torch.weights.weights import initialize
from tests.dist.given_gradients import MESHES, NUM_STEPS, given_gradient, trained
from tests.dist.pool import run_ranks
from tests.parity import cases

LR, REST_LR = 2e-2, 1e-3
MUON = (
    f"muon(lr = {LR}, lr_scale = {{}}, rest = adamw(lr = {REST_LR}, betas = [0.9, 0.95], weight_decay = 0.1))"
)
QUICK = ("1", "dp_shard x tp")


def torchs(rank: int, world_size: int, workspace: Path, scale: str) -> dict[str, Tensor]:
    """The same by torch.optim alone: whole matrices, bfloat16 iterations."""
    config = AutoConfig.from_pretrained(workspace / "llama", local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialize(model, seed=cases.SEED)
    named = dict(model.named_parameters())
    matrices = [one for name, one in named.items() if "_proj" in name]
    norms = [one for name, one in named.items() if "norm" in name]
    tables = [one for name, one in named.items() if "embed_tokens" in name or "lm_head" in name]
    muon = torch.optim.Muon(matrices, lr=LR, weight_decay=0.1, adjust_lr_fn=scale)
    groups: list[dict[str, Any]] = [{"params": norms, "weight_decay": 0.0}, {"params": tables}]
    rest = torch.optim.AdamW(groups, lr=REST_LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for step in range(1, NUM_STEPS + 1):
        for name, parameter in named.items():
            parameter.grad = given_gradient(name, parameter.shape, step=step)
        muon.step()  # type: ignore[no-untyped-call]
        rest.step()
    return {name: parameter.detach() for name, parameter in named.items()}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(
    "mesh", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MESHES]
)
def test_every_mesh_is_torchs_muon_bit_for_bit(
    mesh: str, scale: str, workspace: Path, tmp_path: Path
) -> None:
    found = trained(workspace, tmp_path / "run", kind=MUON.format(scale), **MESHES[mesh])
    (expected,) = run_ranks(torchs, 1, workspace, scale)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
