"""Adapters of routed experts on every mesh, as a loop by hand over experts in plain PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.verify.ranks import Record
from tests.dist.adapters_by_hand import ALPHA, MERGED, RANK, WEIGHTS, adapt, blocks
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_adapters_beside_experts import LAYERS as BESIDE
from tests.dist.test_adapters_beside_experts import assert_as_by_hand, assert_resumes
from tests.dist.test_expert_parallel import (
    EXACT,
    RECOMPUTED,
    ROUTER,
    WEIGHED_IN_FLOAT32,
    Trained,
    batches_of,
    by_transformers,
    folder_of,
    graph_of,
    trained,
)
from tests.inventories import save_inventory
from tests.parity.test_adapter_parity import values
from tests.slow import slow_except

LAYERS = {**BESIDE, "qwen3_moe": ("q_proj", "k_proj", "v_proj", "o_proj")}
EXPERTS, STACKS = "mlp.experts", ("gate_up_proj", "down_proj")
EXPORTS = f"  save_every = 2 steps\n  {MERGED}\n  }}\n"
SAVING = (("train {", f"checkpoint {{\n{EXPORTS}}}\n\ntrain {{"),)
MESHES = (
    *("one", "ep 1 of 4", "ep 2 of 4", "ep 4", "ep 2", "ep 2, replicas", "ep 2, pp"),
    *("one, tp", "ep 2, tp"),
    *("ep 2, cp", "ep 4, over cp", "ep 4, over tp", "ep 2, over tp", "ep 4, over cp and tp"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapted-experts")


def adapt_experts(model: nn.Module) -> dict[str, Tensor]:
    """Give each expert adapters, and return them by peft's names, in peft's shapes."""
    in_file = {}
    for fqn, experts in model.named_modules():
        if not fqn.endswith(EXPERTS):
            continue
        for stack, wrapper in zip(STACKS, (".base_layer", ""), strict=True):
            weight = getattr(experts, stack)
            number, outputs, inputs = weight.mT.shape if experts.is_transposed else weight.shape
            down = values(f"{fqn}.{stack}_lora_A", (number, RANK, inputs)).to(weight.dtype)
            up = values(f"{fqn}.{stack}_lora_B", (number, outputs, RANK)).to(weight.dtype)
            experts.register_parameter(f"{stack}_lora_A", nn.Parameter(down))
            experts.register_parameter(f"{stack}_lora_B", nn.Parameter(up))
            in_file[f"{PREFIX}{fqn}{wrapper}.lora_A.weight"] = torch.cat(list(down))
            in_file[f"{PREFIX}{fqn}{wrapper}.lora_B.weight"] = torch.stack(list(up), 2).flatten(1)
        experts.forward = partial(one_by_one, experts)
    return in_file


def one_by_one(experts: Any, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The sum of the outputs of each token's experts, expert by expert."""

    def adapted(stack: str, expert: int, rows: Tensor) -> Tensor:
        weight = getattr(experts, stack)[expert]
        down, up = (getattr(experts, f"{stack}_lora_{part}")[expert] for part in "AB")
        bias = getattr(experts, f"{stack}_bias")[expert] if experts.has_bias else None
        change = linear(linear(rows, down), up) * (ALPHA / RANK)
        return linear(rows, weight.T if experts.is_transposed else weight, bias) + change

    total = torch.zeros_like(tokens)
    for expert in range(experts.num_experts):
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        inner = experts._apply_gate(adapted("gate_up_proj", expert, tokens[token]))
        weighted = adapted("down_proj", expert, inner) * weights[token, slot].unsqueeze(1)
        total = total.index_add(0, token, weighted.to(total.dtype))
    return total


def prepare(model: nn.Module, *, layers: tuple[str, ...]) -> dict[str, Tensor]:
    """Adapters of linear layers and of experts alone are trained."""
    dense = adapt(model, layers, apart=())
    return {f"{PREFIX}{name}": one for name, one in dense.items()} | adapt_experts(model)


def adapted_folder(root: Path, name: str) -> Path:
    """A model's folder with adapters in peft's format, of which no tensor is constant."""
    folder = folder_of(root, name)
    # Runs compare what their first step sends with what is predicted from it.
    save_inventory(folder / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    write_peft(folder / "adapters", prepare(model, layers=LAYERS[name]))
    return folder


def adapted_graph(folder: Path, mesh: str, *, edits: tuple[tuple[str, str], ...] = ()) -> Graph:
    text = blocks((*LAYERS[folder.name], EXPERTS), apart=())
    return graph_of(folder, mesh, edits=(("\noptimizer {", f"{text}\noptimizer {{"), *edits))


def by_hand(graph: Graph, folder: Path, records: list[Record]) -> Trained:
    def adapted(model: nn.Module) -> None:
        prepare(model, layers=LAYERS[folder.name])

    return by_transformers(graph, folder, batches_of(records), prepare=adapted)


@pytest.mark.parametrize("mesh", slow_except(MESHES, "ep 2"))
def test_adapted_experts_train_as_a_loop_by_hand(mesh: str, root: Path, tmp_path: Path) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graph = adapted_graph(folder, mesh)
    assert graph.adapters is not None and len(graph.adapters.experts) > 1
    records = trained(graph, folder, tmp_path, compares_collectives=True)
    assert_as_by_hand(records, by_hand(graph, folder, records))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *(("gpt_oss", mesh) for mesh in ("one", "ep 2 of 4", "one, tp")),
        *(("mixtral", mesh) for mesh in ("ep 2 of 4", "ep 2, over tp")),
        *(("deepseek_v3", mesh) for mesh in ("ep 2 of 4", "ep 2, over tp")),
    ],
)
def test_adapted_experts_of_other_models_train_as_a_loop_by_hand(
    name: str, mesh: str, root: Path, tmp_path: Path
) -> None:
    folder = adapted_folder(root, name)
    graph = adapted_graph(folder, mesh)
    records = trained(graph, folder, tmp_path)
    exact = ROUTER if name in WEIGHED_IN_FLOAT32 else EXACT
    assert_as_by_hand(records, by_hand(graph, folder, records), exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "mesh"), [("full", "one"), ("selective", "one"), ("full", "ep 2, pp"), ("selective", "ep 2")]
)
def test_recomputed_experts_send_what_is_predicted(mode: str, mesh: str, root: Path, tmp_path: Path) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graph = adapted_graph(folder, mesh, edits=(("data", RECOMPUTED.format(mode)),))
    records = trained(graph, folder, tmp_path, compares_collectives=True)
    assert_as_by_hand(records, by_hand(graph, folder, records))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [("ep 2 of 4", "one"), ("one", "ep 2"), ("ep 4", "ep 2, over tp"), ("ep 2, pp", "ep 4")],
)
def test_a_checkpoint_of_adapted_experts_resumes_on_another_mesh(
    before: str, after: str, root: Path, tmp_path: Path
) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graphs = [adapted_graph(folder, mesh, edits=SAVING) for mesh in (before, after)]
    assert_resumes(*graphs, folder=folder, run_folder=tmp_path, by_hand=by_hand)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), [("qwen3_moe", "ep 2"), ("gpt_oss", "one")])
def test_exports_compute_what_was_trained(name: str, mesh: str, root: Path, tmp_path: Path) -> None:
    """The adapters, and the merged weights in one process with transformers."""
    folder = adapted_folder(root, name)
    graph = adapted_graph(folder, mesh, edits=SAVING)
    records = trained(graph, folder, tmp_path)
    final = by_hand(graph, folder, records).final
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    assert saved.keys() == prepare(model, layers=LAYERS[name]).keys()
    model.load_state_dict(dict(final))
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    merged.set_experts_implementation("eager")
    tokens = torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(merged(tokens).logits, model(tokens).logits, rtol=1e-8, atol=1e-8)
