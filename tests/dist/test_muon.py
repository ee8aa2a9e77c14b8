"""By equal gradients, Muon on every mesh is torch.optim.Muon on whole matrices, bit for bit."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.op import Op
from planc.graph.ops import StepOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.weights.weights import initialize
from tests.dist.pool import run_ranks
from tests.parity import cases
from tests.parity.cases import Case, compile_case, make_workspace
from tests.parity.ranks import Task, train_rank

NUM_STEPS = 10
LR, REST_LR = 2e-2, 1e-3
MUON = (
    f"muon(lr = {LR}, lr_scale = {{}}, rest = adamw(lr = {REST_LR}, betas = [0.9, 0.95], weight_decay = 0.1))"
)
MESHES: dict[str, dict[str, Any]] = {
    "1": {},
    "dp_shard": {"mesh": {"dp_shard": 2}},
    "dp_shard 4": {"mesh": {"dp_shard": 4}},
    "tp": {"mesh": {"tp": 2}},
    "dp_shard x tp": {"mesh": {"dp_shard": 2, "tp": 2}},
    "dp_replicate x dp_shard": {"mesh": {"dp_replicate": 2, "dp_shard": 2}},
    "dp_replicate": {"mesh": {"dp_replicate": 2}, "replicas": "whole"},
    "dp_shard x cp": {"mesh": {"dp_shard": 2, "cp": 2}},
    "dp_shard x cp x tp": {"mesh": {"dp_shard": 2, "cp": 2, "tp": 2}},
    "dp_shard 8": {"mesh": {"dp_shard": 8}},
    "compiled": {"mesh": {"dp_shard": 2, "tp": 2}, "is_compiled": True},
}
QUICK = ("1", "dp_shard x tp")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("muon") / "workspace")


def given_gradient(name: str, shape: torch.Size, *, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
    return torch.randn(shape, generator=generator)


def give_gradients(state: State, op: Op, position: Position) -> None:
    """Puts this rank's parts of gradients that depend on nothing but the parameter and the step."""
    if not isinstance(op, StepOptimizer):
        return
    for name, parameter in state[nn.Module].named_parameters():
        whole = given_gradient(name, parameter.shape, step=position.step)
        if isinstance(parameter, DTensor):
            shape, offset = compute_local_shape_and_global_offset(
                whole.shape, parameter.device_mesh, parameter.placements
            )
            part = whole[tuple(slice(at, at + n) for at, n in zip(offset, shape, strict=True))].contiguous()
            parameter.grad = DTensor.from_local(
                part,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
        else:
            parameter.grad = whole


def trained(
    workspace: Path, folder: Path, *, scale: str, model: str = "llama", **options: Any
) -> dict[str, Tensor]:
    settings = (
        f"optimizer.kind={MUON.format(scale)}",
        "optimizer.clip_grad_norm=none",
        "optimizer.schedule=constant()",
        f"train.steps={NUM_STEPS}",
    )
    case = Case("muon", model=model, settings=settings, **options)
    task = Task(compile_case(case, workspace=workspace), workspace, folder, before_op=give_gradients)
    return run_ranks(train_rank, case.world_size, task, init=False)[0].final


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


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(
    "mesh", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MESHES]
)
def test_every_mesh_is_torchs_muon_bit_for_bit(
    mesh: str, scale: str, workspace: Path, tmp_path: Path
) -> None:
    found = trained(workspace, tmp_path / "run", scale=scale, **MESHES[mesh])
    (expected,) = run_ranks(torchs, 1, workspace, scale)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
