"""By equal gradients, AdamW with stored moments is its plain definition on every mesh, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.runtime.torch.training.stored_adamw import rounded_at_random
from planc.runtime.torch.weights.weights import initialize
from tests.dist.given_gradients import MESHES, NUM_STEPS, given_gradient, trained
from tests.dist.pool import run_ranks
from tests.parity import cases

LR, DECAY, BETAS, EPS, BLOCK = 1e-2, 0.1, (0.9, 0.95), 1e-8, 8
OPTIONS = f"lr = {LR}, betas = [{BETAS[0]}, {BETAS[1]}], weight_decay = {DECAY}"
EIGHT, BF16 = f"adamw_8bit({OPTIONS}, block = {BLOCK})", f"adamw_bf16({OPTIONS})"
QUICK = ("dp_shard x tp",)


def dynamic_map(*, is_signed: bool) -> Tensor:
    """The codes of 8 bits as bitsandbytes has them: midpoints of evenly spaced boundaries, by exponent."""
    found = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for exponent in range(7):
        number = 2**exponent if is_signed else 2 ** (exponent + 1)
        boundaries = torch.linspace(0.1, 1, number + 1, dtype=torch.float64)
        means = 10.0 ** (exponent - 6) * (boundaries[:-1] + boundaries[1:]) / 2
        found += [means, -means] if is_signed else [means]
    return torch.cat(found).sort().values.float()


def coded(moment: Tensor, values: Tensor) -> Tensor:
    """A matrix as it is read again: by rows, block after block, one element after the other."""
    if moment.ndim < 2:
        return moment
    blocks = moment.unflatten(-1, (-1, BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True)
    shares = torch.where(scale > 0, blocks / scale, 0)
    middles = (values[:-1] + values[1:]) / 2
    nearest = (shares.unsqueeze(-1) > middles).sum(-1)
    return (values[nearest] * scale).flatten(-2)


def plainly(rank: int, world_size: int, workspace: Path) -> dict[str, Tensor]:
    """The same with whole tensors that were coded and decoded."""
    config = AutoConfig.from_pretrained(workspace / "llama", local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialize(model, seed=cases.SEED)
    first, second = dynamic_map(is_signed=True), dynamic_map(is_signed=False)
    found = {}
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        decay = 0.0 if "norm" in name else DECAY
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        for step in range(1, NUM_STEPS + 1):
            gradient = given_gradient(name, weight.shape, step=step)
            mean = mean.lerp(gradient, 1 - BETAS[0])
            square = (square * BETAS[1]).addcmul(gradient, gradient, value=1 - BETAS[1])
            direction = mean / (1 - BETAS[0] ** step)
            divisor = (square / (1 - BETAS[1] ** step)).sqrt() + EPS
            weight = (weight * (1 - LR * decay)).sub(direction / divisor, alpha=LR)
            mean, square = coded(mean, first), coded(square, second)
        found[name] = weight
    return found


MESH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MESHES]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESH)
def test_eight_bits_are_the_definition_on_every_mesh(mesh: str, workspace: Path, tmp_path: Path) -> None:
    found = trained(workspace, tmp_path / "run", kind=EIGHT, **MESHES[mesh])
    (expected,) = run_ranks(plainly, 1, workspace)
    assert [name for name, weight in expected.items() if not torch.equal(found[name], weight)] == []


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("kind", [EIGHT, BF16], ids=["8 bits", "bfloat16"])
@pytest.mark.parametrize("mesh", MESH)
def test_every_mesh_stores_the_same_bits(mesh: str, kind: str, workspace: Path, tmp_path: Path) -> None:
    found = trained(workspace, tmp_path / "run", kind=kind, **MESHES[mesh])
    alone = trained(workspace, tmp_path / "alone", kind=kind)
    assert [name for name, weight in alone.items() if not torch.equal(found[name], weight)] == []


def test_rounding_at_random_is_exact_in_the_mean() -> None:
    bits = torch.randint(-(2**31), 2**31, (200_000,), dtype=torch.int64, generator=torch.Generator()).int()
    for value in (1.0, 1.001, -3.3e-4, 7.7e5):
        values = torch.full_like(bits, 0, dtype=torch.float32) + value
        found = rounded_at_random(values, bits)
        assert torch.equal(found, found.bfloat16().float())
        assert len(found.unique()) == (1 if value == 1.0 else 2)
        assert float(found.double().mean()) == pytest.approx(value, rel=1e-5)
