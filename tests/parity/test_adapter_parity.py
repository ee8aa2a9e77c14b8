"""Plans with adapters, on every kind of mesh, against one process with LoRA written out in plain PyTorch.

Both begin with the same adapters, of which none is zero: a B of zeros would hide whatever reaches A.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from planc.graph.op import Op
from planc.graph.ops import AttachAdapters, BuildOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.parallel.packing import packed_parameters
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.adapters import attach
from planc.runtime.torch.weights.weights import copy_block
from planc.verify.compare import disagreements, worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.cases import (
    ALL_8,
    CP2_DP2,
    CP2_TP2,
    PP2_DP2,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
    compile_case,
)
from tests.parity.compare import TOLERANCE
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference, write_weights
from tests.slow import slow_except

QV = '  kind = lora(rank = 4, alpha = 8)\n  "model.layers.*.self_attn.{q,v}_proj" -> adapted\n'
ALL = (
    "  kind = lora(rank = 3, alpha = 5, rslora = true)\n"
    '  "model.layers.*.{self_attn,mlp}.*_proj" -> adapted\n'
    '  override "model.layers.0.mlp.up_proj" -> none\n'
)
UPPER = '  kind = lora(rank = 4, alpha = 8)\n  "model.layers.1.mlp.down_proj" -> adapted\n'
EVERY = '  kind = lora(rank = 2, alpha = 3)\n  "model.layers.*.mlp.*_proj" -> adapted\n'
COMPILED = f'{QV}}}\ncompile {{\n  backend = aot_eager\n  "model.layers.*" -> region\n'
EXPORTED = f'{QV}}}\ncheckpoint {{\n  export "hf" {{ merged = true }}\n  export "adapter" {{}}\n'
DORA = ALL.replace("rslora", "dora")
WIDE = '  kind = lora(rank = 4, alpha = 6, dora = true)\n  "**.{self_attn,mlp}.{*_proj,c_*}" -> adapted\n'
DORA_OF_ATTENTION = (
    ALL.replace("rslora", "dora").replace("{self_attn,mlp}", "self_attn").partition("  over")[0]
)
COMPILED_DORA, EXPORTED_DORA = (text.replace(QV, DORA) for text in (COMPILED, EXPORTED))
RESULTS, QUERIES = (QV.replace("{q,v}_proj", name) for name in ("o_proj", "q_proj"))
SCALES = {
    **dict.fromkeys((COMPILED, QV, RESULTS, QUERIES, UPPER), 8 / 4),
    **dict.fromkeys((DORA, DORA_OF_ATTENTION, COMPILED_DORA), 5 / 3),
    WIDE: 6 / 4,
    EVERY: 3 / 2,
    ALL: 5 / 3**0.5,
}

QUICK = (
    Case("TP2", "lengths of rows", {"tp": 2}, adapter=DORA),
    Case("CP2", "results alone", {"cp": 2}, rotate="ulysses", balance="none", adapter=RESULTS),
)
SLOW = (
    Case("DP2", "whole replicas", {"dp_replicate": 2}, micro_batch=1, adapter=QV, replicas="whole"),
    Case("DP2·CP2·TP2", "DoRA", ALL_8, adapter=DORA),
    Case("DP2", "DoRA, recompute", {"dp_shard": 2}, recomputes=True, micro_batch=2, adapter=DORA),
    Case("TP2·DP2", "DoRA, selective", TP2_DP2, recomputes=True, recomputation="selective", adapter=DORA),
    Case("TP2·DP2", "DoRA, compiled", TP2_DP2, adapter=COMPILED_DORA),
    Case("TP2·DP2", "DoRA, no SP", TP2_DP2, tensor_parallel="auto", recomputes=True, adapter=DORA),
    Case("TP2·DP2", "DoRA, experts", TP2_DP2, "qwen3-moe", tensor_parallel="auto", adapter=DORA_OF_ATTENTION),
    Case(
        "PP2·DP2",
        "DoRA, zero bubble",
        PP2_DP2,
        "llama-deep",
        micro_batch=1,
        schedule="zero_bubble",
        adapter=DORA,
    ),
    Case("TP2·DP2", "DoRA, whole replicas", TP2_REPLICATE2, replicas="whole", recomputes=True, adapter=DORA),
    Case("DP2·CP2·TP2", "all projections", ALL_8, adapter=ALL),
    Case("1", "", adapter=QV),
    Case("1", "biases", model="starcoder", adapter=QV),
    Case("DP4", "", {"dp_shard": 4}, adapter=QV),
    Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}, adapter=ALL),
    Case("DP4", "tied, accumulate 2", {"dp_shard": 4}, "llama-tied", micro_batch=1, adapter=UPPER),
    Case("DP2", "recompute", {"dp_shard": 2}, recomputes=True, adapter=ALL),
    Case("DP2", "selective", {"dp_shard": 2}, recomputes=True, recomputation="selective", adapter=ALL),
    Case("DP2", "offload", {"dp_shard": 2}, recomputes=True, recomputation="offload", adapter=QV),
    Case("TP2·DP2", "offload", TP2_DP2, recomputes=True, recomputation="offload", adapter=QV),
    Case("DP2", "3 units ahead", {"dp_shard": 2}, settings=("fsdp.prefetch=3",), adapter=UPPER),
    Case("DP2", "loss in chunks", {"dp_shard": 2}, settings=("train.loss_chunks=4",), adapter=QV),
    Case("DP2", "experts", {"dp_shard": 2}, "qwen3-moe", adapter=QV),
    Case("TP2·DP2", "", TP2_DP2, adapter=ALL),
    Case("TP2·DP2", "auto, no SP", TP2_DP2, tensor_parallel="auto", adapter=ALL),
    Case("TP4", "qwen3 q/k norms", {"tp": 4}, "qwen3", adapter=ALL),
    Case(
        "TP2·DP2", "whole replicas, recompute", TP2_REPLICATE2, replicas="whole", recomputes=True, adapter=ALL
    ),
    Case("TP2·DP2", "experts", TP2_DP2, "qwen3-moe", tensor_parallel="auto", adapter=QV),
    Case("TP2·DP2", "biases", TP2_DP2, "starcoder", tensor_parallel="auto", adapter=QV),
    Case("CP2·TP2", "ulysses", CP2_TP2, rotate="ulysses", balance="none", adapter=ALL),
    Case("CP2·DP2", "allgather", CP2_DP2, rotate="allgather", adapter=ALL),
    Case("CP2·DP2", "ulysses, frozen keys", CP2_DP2, rotate="ulysses", balance="none", adapter=QV),
    Case("CP2·DP2", "ring, results alone", CP2_DP2, adapter=RESULTS),
    Case("CP2·DP2", "allgather, results alone", CP2_DP2, rotate="allgather", adapter=RESULTS),
    Case("CP2·DP2", "allgather, queries alone", CP2_DP2, rotate="allgather", adapter=QUERIES),
    Case("CP2·DP2", "ring, frozen keys", CP2_DP2, adapter=QV),
    Case("CP2·DP2", "ulysses, compiled", CP2_DP2, rotate="ulysses", balance="none", adapter=COMPILED),
    Case("TP2·DP2", "compiled", TP2_DP2, adapter=COMPILED),
    Case("PP2·DP2", "", PP2_DP2, "llama-deep", micro_batch=1, adapter=ALL),
    Case("PP2·DP2", "tied", PP2_DP2, "llama-deep-tied", micro_batch=1, adapter=QV),
    Case("PP2·TP2", "upper", {"pp": 2, "tp": 2}, "llama-deep", micro_batch=2, adapter=EVERY),
    Case(
        "PP2·DP2",
        "interleaved",
        PP2_DP2,
        "llama-deep",
        micro_batch=1,
        schedule="interleaved(stages_per_rank = 2)",
        adapter=EVERY,
    ),
    Case("PP2·DP2", "zero bubble", PP2_DP2, "llama-deep", micro_batch=1, schedule="zero_bubble", adapter=ALL),
)

_APART = ("adapter.dtype=float64", "fsdp.param_dtype=float32")
APART = (
    Case("TP2·DP2", "float64", TP2_DP2, adapter=QV, settings=_APART),
    Case("1", "float64", adapter=QV, settings=_APART),
    Case("DP2", "float64, DoRA", {"dp_shard": 2}, adapter=DORA, settings=_APART),
    Case("DP4", "HSDP 2x2, float64", {"dp_replicate": 2, "dp_shard": 2}, adapter=ALL, settings=_APART),
    Case("DP2", "float64, accumulate 2", {"dp_shard": 2}, micro_batch=2, adapter=QV, settings=_APART),
    Case("CP2·DP2", "float64", CP2_DP2, rotate="allgather", adapter=ALL, settings=_APART),
    Case("PP2·DP2", "float64", PP2_DP2, "llama-deep", micro_batch=1, adapter=ALL, settings=_APART),
    Case("TP2·DP2", "float64, selective", TP2_DP2, recomputes=True, adapter=ALL, settings=_APART),
)


def values(name: str, shape: tuple[int, ...]) -> Tensor:
    """Whole values for a parameter, by its name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.05
    return drawn + 0.3 if len(shape) == 1 else drawn


class Low(nn.Module):
    """A matrix or a vector, as peft names it."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(f"{name}.weight", shape).to(dtype))


@dataclass(frozen=True)
class WithLora:
    """Make layers of a model compute `W x + b + scale * B A x`, and train A and B alone.

    With DoRA the rows of `W + scale * B A` have trained lengths, and their own are constants.
    """

    names: tuple[str, ...]
    rank: int
    scale: float
    dora: bool = False
    stored: torch.dtype | None = None
    """The dtype of A, B and the lengths, which are cast to that of the layer's input; None is the layer's."""

    def __call__(self, model: nn.Module) -> None:
        model.requires_grad_(False)
        for name in self.names:
            layer: Any = model.get_submodule(name)
            (outputs, inputs), dtype = layer.weight.shape, self.stored or layer.weight.dtype
            layer.lora_A = Low(f"{name}.lora_A", (self.rank, inputs), dtype)
            layer.lora_B = Low(f"{name}.lora_B", (outputs, self.rank), dtype)
            if self.dora:
                layer.lora_magnitude_vector = Low(f"{name}.lora_magnitude_vector", (outputs,), dtype)
            layer.forward = self._forward(layer)

    def _forward(self, layer: Any) -> Any:
        def with_lengths(x: Tensor) -> Tensor:
            low, up, wanted = (
                getattr(layer, name).weight.to(x.dtype)
                for name in ("lora_A", "lora_B", "lora_magnitude_vector")
            )
            whole = layer.weight + self.scale * up @ low
            lengths = whole.detach().square().sum(1).sqrt()
            y = x @ (wanted[:, None] * whole / lengths[:, None]).T
            return y if layer.bias is None else y + layer.bias

        def forward(x: Tensor) -> Tensor:
            low, up = (layer.lora_A.weight.to(x.dtype), layer.lora_B.weight.to(x.dtype))
            y = x @ layer.weight.T + (x @ low.T @ up.T) * self.scale
            return y if layer.bias is None else y + layer.bias

        return with_lengths if self.dora else forward


def fill_adapters(state: State, op: Op, position: Position) -> None:
    """Before the optimizer is built, give every adapter the values that the reference has.

    Lengths of rows begin as those of the weights in the model's files.
    """
    if not isinstance(op, BuildOptimizer):
        return
    model = state[nn.Module]
    packings = packed_parameters(model)
    for name, parameter in model.named_parameters():
        if name.endswith(".lora_magnitude_vector.weight"):
            require_lengths(state[Run], name, parameter)
        if "lora_" in name:
            fill = partial(_fill, values(name, tuple(parameter.shape)))
            copy_block(parameter, fill, packing=packings.get(parameter))


def require_lengths(run: Run, name: str, parameter: nn.Parameter) -> None:
    """Compare first lengths of rows with a weight that is not quantized."""
    if run.graph.quantized is None:
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        stored = load_file(run.paths.base / run.model_op.path / "model.safetensors")
        weight = stored[f"{name.removesuffix('.lora_magnitude_vector.weight')}.weight"]
        expected = weight.double().square().sum(1).sqrt().to(whole.dtype)
        assert torch.allclose(whole.detach(), expected, rtol=1e-6, atol=0), f"first {name}"


def _fill(whole: Tensor, out: Tensor, block: Slices) -> None:
    out.copy_(whole[block])


def assert_trains_as_one_process(
    case: Case,
    *,
    workspace: Path,
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None,
    tolerance: float = TOLERANCE,
) -> Record:
    graph = compile_case(replace(case, weights="pretrained"), workspace=workspace)
    adapters = graph.adapters
    assert adapters is not None
    assert adapters.modules
    lora = WithLora(adapters.modules, adapters.rank, SCALES[case.adapter], adapters.dora, stored)
    reference = train_reference(case.model, workspace=workspace, dtype=dtype, prepare=lora)
    with TemporaryDirectory(prefix="planc-adapters-") as folder:
        task = Task(graph, workspace, Path(folder), fill_adapters)
        records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
    first = records[0]
    assert disagreements(records) == ()
    lows = ("lora_A", "lora_B", "lora_magnitude_vector")[: 2 + adapters.dora]
    assert set(reference.gradients) == {f"{name}.{low}.weight" for name in adapters.modules for low in lows}
    assert all(gradient.abs().min() > 0 for gradient in reference.gradients.values())
    worst, error = worst_gradient(first.gradients, reference.gradients)
    assert error < tolerance, f"gradient of {worst}"
    assert worst_relative([step.loss for step in first.metrics], reference.losses) < tolerance
    assert worst_relative([step.grad_norm for step in first.metrics], reference.grad_norms) < tolerance
    kept = [name for name in reference.initial if name not in reference.gradients]
    assert all(torch.equal(first.final[name], reference.initial[name]) for name in kept)
    worst, error = worst_gradient(first.final, reference.final)
    assert error < 100 * tolerance, f"final {worst}"
    return first


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_mesh_trains_adapters_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{}, {"tp": 2}, {"dp_shard": 2}, TP2_DP2], ids=str)
def test_lengths_of_rows_are_exact_in_float64(mesh: dict[str, int], workspace: Path) -> None:
    """With biases, which keep their size, and norms in float64."""
    settings, rules = ("model.dtype=float64",), "auto" if "tp" in mesh else "sequence"
    case = Case("DoRA", mesh=mesh, model="starcoder", tensor_parallel=rules, settings=settings, adapter=WIDE)
    assert_trains_as_one_process(case, workspace=workspace, dtype=torch.float64, tolerance=1e-10)


@pytest.mark.parametrize(
    "case",
    slow_except(APART, "TP2·DP2 float64", name=lambda case: case.name),
    ids=lambda case: case.name,
)
def test_adapters_are_stored_in_another_dtype_than_their_layers_compute_in(
    case: Case, workspace: Path
) -> None:
    """Gradients are those of float32 layers, and what the optimizer keeps needs float64."""
    first = assert_trains_as_one_process(case, workspace=workspace, stored=torch.float64)
    for name in first.gradients:
        assert first.final[name].dtype is torch.float64
        assert not torch.equal(first.final[name], first.final[name].float().double()), name


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_every_mesh_trains_adapters_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


def test_adapters_drop_the_same_elements_on_every_mesh(workspace: Path) -> None:
    write_weights(workspace / "llama")
    losses = []
    for mesh, dropout in (({}, 0.5), ({"dp_shard": 2}, 0.5), ({}, 0.0)):
        dropping = QV.replace("alpha = 8", f"alpha = 8, dropout = {dropout}")
        case = Case("dropout", mesh=mesh, weights="pretrained", adapter=dropping)
        with TemporaryDirectory(prefix="planc-adapters-") as folder:
            task = Task(compile_case(case, workspace=workspace), workspace, Path(folder), fill_adapters)
            records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
        losses.append([step.loss for step in records[0].metrics])
    whole, sharded, undropped = losses
    assert worst_relative(sharded, whole) < TOLERANCE
    assert worst_relative(undropped, whole) > 10 * TOLERANCE


class Mask(nn.Dropout):
    """Drops every third feature, and doubles the others."""

    def forward(self, input: Tensor) -> Tensor:
        return input * (torch.arange(input.shape[-1]) % 3 > 0) * 2 if self.training else input


def test_a_change_of_lengths_is_of_what_dropout_leaves() -> None:
    """As in peft: `W x + b`, and `(m / |W'| - 1) W d + m / |W'| scale B A d` of what dropout leaves, d."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"layer": nn.Linear(9, 5)}).double()
    op = AttachAdapters(
        modules=("layer",), rank=2, alpha=3.0, rslora=False, dropout=0.5, dora=True, span=None
    )
    attach(model, op)
    layer: Any = model["layer"]
    layer.lora_dropout = Mask()
    for part, shape in (("lora_A", (2, 9)), ("lora_B", (5, 2)), ("lora_magnitude_vector", (5,))):
        getattr(layer, part).weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    weight, bias, m = layer.weight, layer.bias, layer.lora_magnitude_vector.weight
    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    parameters = [x, *model.parameters()]
    for is_training in (True, False):
        model.train(is_training)
        left = layer.lora_dropout(x)
        change = 1.5 * layer.lora_B.weight @ layer.lora_A.weight
        share = m / torch.linalg.vector_norm((weight + change).detach(), dim=1)
        expected = x @ weight.T + bias + (share - 1) * (left @ weight.T) + share * (left @ change.T)
        found = layer(x)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        slopes = (torch.autograd.grad(one.square().sum(), parameters) for one in (found, expected))
        for own, by_hand in zip(*slopes, strict=True):
            torch.testing.assert_close(own, by_hand, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "adapter", [EXPORTED_DORA, pytest.param(EXPORTED, marks=pytest.mark.slow)], ids=["dora", "lora"]
)
def test_exports_compute_what_was_trained(adapter: str, workspace: Path) -> None:
    case = Case("TP2·DP2", "exports", TP2_DP2, weights="pretrained", adapter=adapter)
    write_weights(workspace / case.model)
    graph = compile_case(case, workspace=workspace)
    base = AutoModelForCausalLM.from_pretrained(workspace / case.model)
    with TemporaryDirectory(prefix="planc-adapters-") as name:
        folder = Path(name)
        task = Task(graph, workspace, folder, fill_adapters)
        records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
        merged = AutoModelForCausalLM.from_pretrained(folder / "export" / "hf")
        weights = load_file(folder / "export" / "adapter" / "adapter_model.safetensors")
        config = json.loads((folder / "export" / "adapter" / "adapter_config.json").read_text())
    trained = {
        f"base_model.model.{name.replace('vector.weight', 'vector')}": one
        for name, one in records[0].final.items()
        if ".lora_" in name
    }
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], one) for name, one in trained.items())
    tokens = torch.arange(2 * 32).view(2, 32)
    with torch.no_grad():
        before = base(tokens).logits
        for module in config["target_modules"]:
            down, up = (weights[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
            weight: Any = base.get_submodule(module).weight
            weight += config["lora_alpha"] / config["r"] * up @ down
            if config["use_dora"]:
                lengths = weights[f"base_model.model.{module}.lora_magnitude_vector"]
                weight *= (lengths / weight.square().sum(1).sqrt())[:, None]
        adapted, exported = base(tokens).logits, merged(tokens).logits
    assert (adapted - before).abs().max() > 1e-3
    assert (adapted - exported).abs().max() < 1e-5
