"""Adapters on a base in NF4, on every kind of mesh, against one process in plain PyTorch.

The reference computes the 16 values from the normal distribution, rounds each weight to the nearest of them,
block by block, and trains LoRA on the rounded weights by hand. It shares no code with planc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from planc.runtime.torch.weights.nf4 import Nf4, quantized
from planc.verify.compare import disagreements, worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.cases import CP2_DP2, PP2_DP2, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.compare import TOLERANCE
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference, write_weights
from tests.parity.test_adapter_parity import WithLora, fill_adapters

MODEL = "llama-wide"
BLOCK = 64
LINEAR = re.compile(r"model\.layers\.\d\.(self_attn|mlp)\..*_proj")
QV = '  kind = lora(rank = 4, alpha = 8)\n  base = nf4\n  "model.layers.*.self_attn.{q,v}_proj" -> adapted\n'
ALL = (
    "  kind = lora(rank = 3, alpha = 6)\n  base = nf4\n"
    '  "model.layers.*.{self_attn,mlp}.*_proj" -> adapted\n'
    '  override "model.layers.0.mlp.up_proj" -> none\n'
)
DORA = ALL.replace("alpha = 6", "alpha = 6, dora = true")
EXPORTED = f'{ALL}}}\ncheckpoint {{\n  export "hf" {{ merged = true }}\n  export "adapter" {{}}\n'
COMPILED = f'{ALL}}}\ncompile {{\n  backend = aot_eager\n  "model.layers.*" -> region\n'
QUICK = (Case("TP2·DP2", "", TP2_DP2, MODEL, adapter=EXPORTED),)
SLOW = (
    Case("1", "", model=MODEL, adapter=QV),
    Case("DP2", "recompute", {"dp_shard": 2}, MODEL, recomputes=True, adapter=ALL),
    Case("DP2", "selective", {"dp_shard": 2}, MODEL, recomputes=True, recomputation="selective", adapter=ALL),
    Case("DP2", "whole replicas", {"dp_replicate": 2}, MODEL, replicas="whole", adapter=ALL),
    Case("TP2", "no SP", {"tp": 2}, MODEL, tensor_parallel="auto", adapter=ALL),
    Case("TP2·DP2", "compiled", TP2_DP2, MODEL, adapter=COMPILED),
    Case("TP2·DP2", "DoRA", TP2_DP2, MODEL, recomputes=True, adapter=DORA),
    Case("CP2·DP2", "", CP2_DP2, MODEL, adapter=ALL),
    Case("PP2·DP2", "", PP2_DP2, MODEL, micro_batch=1, adapter=EXPORTED),
    Case("PP2·DP2", "zero bubble", PP2_DP2, MODEL, micro_batch=1, schedule="zero_bubble", adapter=ALL),
)


def normal_values() -> Tensor:
    """Eight quantiles above zero, seven below, and zero, as a share of the largest."""
    offset = 0.5 * ((1 - 1 / 32) + (1 - 1 / 30))
    above, below = (torch.linspace(offset, 0.5, n, dtype=torch.float64)[:-1].tolist() for n in (9, 8))
    upper, lower = map(NormalDist().inv_cdf, above), (-NormalDist().inv_cdf(p) for p in below)
    values = torch.tensor(sorted([*upper, *lower, 0.0]), dtype=torch.float64)
    return values / values.max()


def rounded(weight: Tensor) -> Tensor:
    """Each element as the nearest value, of the largest magnitude of its block."""
    result = weight.clone()
    values = normal_values().float()
    for row in result:
        for start in range(0, len(row), BLOCK):
            block = row[start : start + BLOCK]
            largest = block.abs().max()
            nearest = (block[:, None] / largest - values).abs().argmin(1)
            block.copy_(values[nearest] * largest)
    return result


@dataclass(frozen=True)
class WithQlora:
    """Round the weights of all linear layers but the head, and add adapters."""

    lora: WithLora

    def __call__(self, model: nn.Module) -> None:
        with torch.no_grad():
            for name, layer in model.named_modules():
                if LINEAR.fullmatch(name):
                    layer.weight.copy_(rounded(layer.weight))  # type: ignore[operator, arg-type, union-attr]
        self.lora(model)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("qlora") / "workspace", (MODEL,))
    write_weights(folder / MODEL)
    return folder


def assert_trains_as_one_process(case: Case, *, workspace: Path) -> None:
    graph = compile_case(replace(case, weights="pretrained"), workspace=workspace)
    adapters = graph.adapters
    assert adapters is not None
    lora = WithLora(adapters.modules, adapters.rank, 2.0, adapters.dora)
    reference = train_reference(case.model, workspace=workspace, prepare=WithQlora(lora))
    plain = train_reference(case.model, workspace=workspace, prepare=lora)
    assert worst_relative(plain.losses, reference.losses) > 10 * TOLERANCE
    with TemporaryDirectory(prefix="planc-qlora-") as name:
        folder = Path(name)
        task = Task(graph, workspace, folder, fill_adapters)
        records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
        exports = "hf" in case.adapter
        merged = AutoModelForCausalLM.from_pretrained(folder / "export" / "hf") if exports else None
    first = records[0]
    assert disagreements(records) == ()
    assert set(first.gradients) == set(reference.gradients)
    worst, error = worst_gradient(first.gradients, reference.gradients)
    assert error < TOLERANCE, f"gradient of {worst}"
    assert worst_relative([step.loss for step in first.metrics], reference.losses) < TOLERANCE
    assert worst_relative([step.grad_norm for step in first.metrics], reference.grad_norms) < TOLERANCE
    trained = {name: first.final[name] for name in reference.gradients}
    worst, error = worst_gradient(trained, {name: reference.final[name] for name in trained})
    assert error < 100 * TOLERANCE, f"final {worst}"
    for name, weight in reference.initial.items():
        if LINEAR.fullmatch(name.removesuffix(".weight")):
            assert torch.allclose(first.final[name], weight, rtol=1e-6, atol=0)
        elif ".lora_" not in name:
            assert torch.equal(first.final[name], weight)
    if merged is not None:
        assert_merged(dict(merged.named_parameters()), reference.final)


def assert_merged(exported: dict[str, nn.Parameter], final: dict[str, Tensor]) -> None:
    """The export is the base as it was trained, with what its adapters add."""
    for name, weight in exported.items():
        layer, expected = name.removesuffix(".weight"), final[name]
        if (up := final.get(f"{layer}.lora_B.weight")) is not None:
            expected = expected + 2 * up @ final[f"{layer}.lora_A.weight"]
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_mesh_trains_on_a_quantized_base_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_every_mesh_trains_on_a_quantized_base_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


def test_codes_are_the_nearest_values() -> None:
    weight = torch.randn(5, 192, generator=torch.Generator().manual_seed(0)) * 0.05
    weight[1, 64:128] = 0.0
    stored = quantized(weight, block=BLOCK)
    assert stored.shape == (5, 3 * 36)
    expected = rounded(weight)
    expected[1, 64:128] = 0.0
    torch.testing.assert_close(Nf4(BLOCK, torch.float32).weight(stored), expected, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_codes_and_scales_are_those_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    for dtype in (torch.float32, torch.bfloat16):
        weight = (torch.randn(48, 256, generator=torch.Generator().manual_seed(1)) * 0.05).to(dtype)
        codes, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=BLOCK)
        stored = quantized(weight, block=BLOCK)
        blocks = stored.unflatten(1, (-1, 36))
        assert torch.equal(blocks[..., :32].flatten(), codes.flatten())
        assert torch.equal(blocks[..., 32:].contiguous().view(torch.float32).flatten(), state.absmax)
        theirs = functional.dequantize_4bit(codes, state)
        assert torch.equal(Nf4(BLOCK, dtype).weight(stored), theirs)
