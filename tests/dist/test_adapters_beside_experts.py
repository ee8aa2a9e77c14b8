"""Adapters of dense layers of a model whose frozen experts are on different ranks, as a loop by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.verify.ranks import Record
from tests.dist.adapters_by_hand import WEIGHTS, adapt, blocks
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_expert_parallel import (
    EXACT,
    RECOMPUTED,
    ROUTER,
    WEIGHED_IN_FLOAT32,
    Trained,
    assert_equal,
    batches_of,
    by_transformers,
    folder_of,
    graph_of,
    trained,
)
from tests.inventories import save_inventory
from tests.slow import slow_except

LAYERS = {
    "deepseek_v3": ("q_b_proj", "kv_b_proj", "o_proj", "shared_experts.down_proj"),
    "qwen2_moe": ("q_proj", "o_proj", "shared_expert.up_proj", "shared_expert.down_proj"),
    **dict.fromkeys(("qwen3_moe", "gpt_oss", "mixtral"), ("q_proj", "v_proj", "o_proj")),
}
SAVING = (("train {", 'checkpoint {\n  save_every = 2 steps\n  export "adapter" {}\n}\n\ntrain {'),)
MESHES = (
    *("ep 2 of 4", "ep 4", "ep 2", "ep 2, replicas", "ep 2, pp", "ep 2, tp", "ep 2, tp of sequences"),
    *("ep 2, cp", "ep 4, over cp", "ep 4, over tp", "ep 2, over tp", "ep 4, over cp and tp"),
    "ep 2, compiled",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapted-experts")


def adapted_folder(root: Path, name: str, *, layers: tuple[str, ...] = ()) -> Path:
    """A model's folder with adapters of its layers, of which no tensor is constant."""
    folder = folder_of(root, name)
    # Runs compare what their first step sends with what is predicted from it.
    save_inventory(folder / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    tensors = adapt(model, layers or LAYERS[name], apart=())
    write_peft(folder / "adapters", {f"{PREFIX}{key}": one for key, one in tensors.items()})
    return folder


def adapted_graph(
    folder: Path, mesh: str, *, layers: tuple[str, ...] = (), edits: tuple[tuple[str, str], ...] = ()
) -> Graph:
    text = blocks(layers or LAYERS[folder.name], apart=())
    return graph_of(folder, mesh, edits=(("\noptimizer {", f"{text}\noptimizer {{"), *edits))


def by_hand(graph: Graph, folder: Path, records: list[Record], *, layers: tuple[str, ...] = ()) -> Trained:
    def prepare(model: nn.Module) -> None:
        adapt(model, layers or LAYERS[folder.name], apart=())

    return by_transformers(graph, folder, batches_of(records), prepare=prepare)


def assert_as_by_hand(records: list[Record], expected: Trained, *, exact: float = EXACT) -> None:
    """Adapters alone have gradients, each one that is not zero; the rest is bitwise what it was."""
    assert_equal(records, expected, exact=exact)
    assert records[0].gradients.keys() == expected.gradients.keys()
    assert all("lora_" in name and one.abs().max() > 0 for name, one in expected.gradients.items())
    for name in expected.final.keys() - expected.gradients.keys():
        assert torch.equal(records[0].final[name], expected.final[name]), name


def assert_resumes(
    before: Graph,
    after: Graph,
    *,
    folder: Path,
    run_folder: Path,
    by_hand: Callable[[Graph, Path, list[Record]], Trained],
) -> None:
    """A run of one mesh goes on with another as a loop by hand does, with the state of adapters alone."""
    first = trained(before, folder, run_folder, stop_after=2)[0]
    # Weights, two moments and a counter of steps.
    assert sum("lora_" in name for name in first.states[2]) == 4 * len(first.gradients)
    resumed = trained(after, folder, run_folder)
    assert resumed[0].first_step == 3 and resumed[0].states[2] == first.states[2]
    first.metrics += resumed[0].metrics
    for name, weight in by_hand(after, folder, [first]).final.items():
        torch.testing.assert_close(resumed[0].final[name], weight, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mesh", slow_except(MESHES, "ep 2"))
def test_adapters_train_as_a_loop_by_hand(mesh: str, root: Path, tmp_path: Path) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graph = adapted_graph(folder, mesh)
    assert graph.experts is not None and graph.adapters is not None
    records = trained(graph, folder, tmp_path, compares_collectives=True)
    assert_as_by_hand(records, by_hand(graph, folder, records))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *(("gpt_oss", mesh) for mesh in ("ep 2 of 4", "ep 2, tp")),
        *(("mixtral", mesh) for mesh in ("ep 2 of 4", "ep 2, over tp")),
        *(
            ("deepseek_v3", mesh)
            for mesh in ("ep 2 of 4", "ep 2, tp", "ep 2, tp of sequences", "ep 2, over tp")
        ),
        *(("qwen2_moe", mesh) for mesh in ("ep 2 of 4", "ep 2, tp")),
    ],
)
def test_adapters_of_other_models_train_as_a_loop_by_hand(
    name: str, mesh: str, root: Path, tmp_path: Path
) -> None:
    folder = adapted_folder(root, name)
    graph = adapted_graph(folder, mesh)
    records = trained(graph, folder, tmp_path)
    exact = ROUTER if name in WEIGHED_IN_FLOAT32 else EXACT
    assert_as_by_hand(records, by_hand(graph, folder, records), exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("mesh", ["ep 2 of 4", "ep 2, pp"])
def test_recomputed_layers_send_what_is_predicted(mode: str, mesh: str, root: Path, tmp_path: Path) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graph = adapted_graph(folder, mesh, edits=(("data", RECOMPUTED.format(mode)),))
    records = trained(graph, folder, tmp_path, compares_collectives=True)
    assert_as_by_hand(records, by_hand(graph, folder, records))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [("ep 2 of 4", "one"), ("one", "ep 2"), ("ep 4", "ep 2, tp"), ("ep 2, pp", "ep 4")]
)
def test_a_checkpoint_of_adapters_alone_resumes_on_another_mesh(
    before: str, after: str, root: Path, tmp_path: Path
) -> None:
    """With the moments of what is trained, with experts on other ranks or on one."""
    folder = adapted_folder(root, "qwen3_moe")
    graphs = [adapted_graph(folder, mesh, edits=SAVING) for mesh in (before, after)]
    assert_resumes(*graphs, folder=folder, run_folder=tmp_path, by_hand=by_hand)


@pytest.mark.slow
def test_an_export_is_what_was_trained(root: Path, tmp_path: Path) -> None:
    folder = adapted_folder(root, "qwen3_moe")
    graph = adapted_graph(folder, "ep 2 of 4", edits=SAVING)
    records = trained(graph, folder, tmp_path)
    expected = by_hand(graph, folder, records)
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    assert saved.keys() == {f"{PREFIX}{name}" for name in expected.gradients}
    for name in expected.gradients:
        torch.testing.assert_close(saved[f"{PREFIX}{name}"], expected.final[name], rtol=1e-8, atol=1e-10)
