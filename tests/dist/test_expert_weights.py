"""Experts: stacked in the model, apart in a checkpoint. A mesh loads and exports what transformers does."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.dist.pool import RankError, run_ranks
from tests.models.tiny import tiny_config
from tests.parity.cases import TP2_DP2, Case, compile_case, make_workspace
from tests.parity.ranks import Record, Task, digest, train_rank

MODELS = {
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "inkling2_text": "Inkling2ForCausalLM",
}
PRETRAINED = ("model.weights=pretrained", "checkpoint.export.hf.when=end", "checkpoint.save_last=false")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each architecture a folder as `save_pretrained` writes it, with weights that all differ."""
    folder = make_workspace(tmp_path_factory.mktemp("experts") / "workspace")
    for name, architecture in MODELS.items():
        (folder / name).mkdir()
        config = json.dumps(tiny_config(name, architecture))
        (folder / name / "config.json").write_text(config)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder / name), dtype=torch.float32
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) / 16)
        model.save_pretrained(folder / name)
        (folder / name / "config.json").write_text(config)
    return folder


def case(name: str, shape: str = "FSDP4") -> Case:
    mesh = {"FSDP4": {"dp_shard": 4}, "TP2·DP2": TP2_DP2}[shape]
    # A bias of scores by distance, which no fused kernel has.
    attention = ("model.attention=eager",) if name == "inkling2_text" else ()
    return Case(shape, "", mesh, model=name, tensor_parallel="auto", settings=(*PRETRAINED, *attention))


def trained(one: Case, *, workspace: Path, run_folder: Path, num_steps: int) -> list[Record]:
    """Every rank's record of a run that ends after `num_steps`."""
    task = Task(compile_case(one, workspace=workspace), workspace, run_folder, stop_after=num_steps)
    return run_ranks(train_rank, one.world_size, task, init=False)


def plain(folder: Path) -> PreTrainedModel:
    """What transformers itself loads."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # CPU kernels round by where a weight lies in memory, and each file maps its own to other addresses.
    return deepcopy(model).eval()


def digests(model: PreTrainedModel) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in model.state_dict().items()}


def keys(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(case("mixtral"), marks=pytest.mark.slow),
        case("mixtral", "TP2·DP2"),
        pytest.param(case("qwen2_moe", "TP2·DP2"), marks=pytest.mark.slow),
        case("deepseek_v3"),
        pytest.param(case("gpt_oss"), marks=pytest.mark.slow),
        case("inkling2_text"),
    ],
    ids=lambda one: f"{one.model} {one.shape}",
)
def test_a_mesh_loads_and_exports_what_transformers_loads_and_saves(
    one: Case, workspace: Path, tmp_path: Path
) -> None:
    folder = workspace / one.model
    model = plain(folder)
    expected = {name: digest(parameter) for name, parameter in model.named_parameters()}
    records = trained(one, workspace=workspace, run_folder=tmp_path, num_steps=1)
    for record in records:
        assert record.initial == expected
    # Buffers, such as the biases that choose experts, are not trained: they stay as they were loaded.
    model.load_state_dict(records[0].final, strict=False)
    exported, ids = plain(tmp_path / "export/hf"), torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        assert torch.equal(exported(ids).logits, model(ids).logits)
    assert digests(exported) == digests(model)
    assert keys(tmp_path / "export/hf") == keys(folder)


@pytest.mark.slow
def test_an_absent_expert_is_named_as_its_file_would(workspace: Path, tmp_path: Path) -> None:
    folder = workspace / "mixtral"
    whole = load_file(folder / "model.safetensors")
    lacking = {
        key: tensor for key, tensor in whole.items() if "layers.1.block_sparse_moe.experts.2.w1" not in key
    }
    assert len(lacking) == len(whole) - 1
    save_file(lacking, folder / "model.safetensors", metadata={"format": "pt"})
    try:
        with pytest.raises(
            RankError, match=r"missing model\.layers\.1\.block_sparse_moe\.experts\.2\.w1\.weight"
        ):
            trained(case("mixtral"), workspace=workspace, run_folder=tmp_path, num_steps=0)
    finally:
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
