"""Clipping: in a fused kernel, or in a pass of its own, weights are those of torch's own clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.optim import AdamW

from planc.runtime.torch import private
from planc.runtime.torch.training.optimizer import step_by
from tests.dist.pool import run_ranks
from tests.parity.cases import TP2_DP2, Case, compile_case, make_workspace
from tests.parity.ranks import Task, train_rank
from tests.parity.reference import train_reference
from tests.slow import slow_except

SHAPES: tuple[tuple[tuple[int, ...], Placement], ...] = (((6, 5), Shard(0)), ((7,), Replicate()))
OPTIONS = {"lr": 0.05, "betas": (0.9, 0.95), "weight_decay": 0.1}
FACTOR = 0.0123456789


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape, _ in SHAPES]


def laid_out(values: list[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    return [
        distribute_tensor(one, mesh, [placement]) for one, (_, placement) in zip(values, SHAPES, strict=True)
    ]


def clipped_rank(rank: int, world_size: int) -> list[tuple[Tensor, Tensor]]:
    """Parameters after steps of the fused kernel on DTensors, and after those of torch's loop on whole ones.

    The second step is not clipped.
    """
    mesh = init_device_mesh("cpu", (world_size,))
    parts = [nn.Parameter(one) for one in laid_out(tensors(0), mesh)]
    whole = [nn.Parameter(one) for one in tensors(0)]
    fused = private.on_local_parts(AdamW)(parts, fused=True, **OPTIONS)  # type: ignore[call-arg]
    loop = AdamW(whole, foreach=False, **OPTIONS)  # type: ignore[arg-type]
    for seed, factor in ((1, FACTOR), (2, 1.0)):
        gradients = laid_out(tensors(seed), mesh)
        for parameter, gradient in zip(parts, gradients, strict=True):
            parameter.grad = gradient
        step_by(fused, gradients, factor=factor, device=torch.device("cpu"))
        for parameter, gradient in zip(whole, tensors(seed), strict=True):
            parameter.grad = gradient * factor
        loop.step()
    assert all(isinstance(one, DTensor) for one in fused.state[parts[0]].values() if one.ndim)
    found = [one.detach().full_tensor() for one in parts if isinstance(one, DTensor)]
    return list(zip(found, (one.detach() for one in whole), strict=True))


def test_a_fused_step_clips_the_parts_of_dtensors() -> None:
    for pairs in run_ranks(clipped_rank, 2):
        for found, expected in pairs:
            assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("factor", [FACTOR, 1e-39])
@pytest.mark.parametrize("implementation", slow_except(["fused", "foreach", "for_loop"], "fused"))
def test_every_implementation_takes_scaled_gradients(implementation: str, factor: float) -> None:
    """A divisor of 1e39 is no float32. Moments show the scale of a gradient, which a first step hides."""
    options: dict[str, Any] = {"foreach": implementation == "foreach"}
    scaled = torch.arange(1.0, 6.0, dtype=torch.float64) * 1e-3
    weight = nn.Parameter(torch.ones(5))
    weight.grad = (scaled / factor).float()
    optimizer = AdamW([weight], **options, **({"fused": True} if implementation == "fused" else {}))
    step_by(optimizer, [weight.grad], factor=factor, device=weight.device)
    moment = optimizer.state[weight]["exp_avg"].double()
    assert torch.allclose(moment, scaled * 0.1, rtol=2e-6 if factor == FACTOR else 1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", slow_except(["fused", "foreach", "for_loop"], "fused"))
def test_runs_that_clip_every_step_equal_torchs_clipping(implementation: str, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    settings = (f"optimizer.kind.implementation={implementation}",)
    case = Case("TP2·DP2", implementation, TP2_DP2, settings=settings, weights="pretrained")
    expected = train_reference("llama", workspace=workspace)
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run")
    record = run_ranks(train_rank, 4, task, init=False)[0]
    assert min(expected.grad_norms) > 1.0, "some step does not clip"
    assert [step.loss for step in record.metrics] == pytest.approx(expected.losses, rel=1e-5)
    for name, weight in expected.final.items():
        change = weight - expected.initial[name]
        assert (record.final[name] - weight).norm() <= 1e-3 * change.norm(), name
