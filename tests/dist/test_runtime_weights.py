"""Weights on a mesh: drawn equal on every one, and read by slice from safetensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from planc.runtime.interpreter import run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.weights import files as weights_files
from planc.runtime.torch.weights.weights import initialize
from tests.dist.pool import RankError, run_ranks
from tests.parity.cases import (
    CP2_DP2,
    GLOBAL_BATCH,
    SEED,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
    compile_case,
)
from tests.parity.ranks import Record, Task, digest, open_run, train_rank
from tests.parity.reference import open_samples

PRETRAINED = ("model.weights=pretrained",)
SHARE = Case("TP2·DP2", "", TP2_DP2, model="llama", settings=PRETRAINED)


@pytest.fixture
def own_workspace(workspace: Path, tmp_path: Path) -> Path:
    """A copy to put weights into."""
    return Path(shutil.copytree(workspace, tmp_path / "workspace"))


def fresh_model(workspace: Path, name: str, *, seed: int = SEED) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(workspace / name, local_files_only=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialize(model, seed=seed)
    return model


def digests(model: PreTrainedModel) -> dict[str, str]:
    return {name: digest(parameter) for name, parameter in model.named_parameters()}


def save_weights(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    """The model's weights, next to the existing config."""
    config = (folder / "config.json").read_bytes()
    model.save_pretrained(folder, **options)
    (folder / "config.json").write_bytes(config)


def set_up(case: Case, *, workspace: Path, num_steps: int = 0) -> list[Record]:
    """Every rank's record of a run that ends after `num_steps`."""
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run", stop_after=num_steps)
    return run_ranks(train_rank, case.world_size, task, init=False)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    "case",
    [
        Case("FSDP2", "257 rows", {"dp_shard": 2}, model="llama-uneven"),
        Case(
            "FSDP3",
            "257 rows",
            {"dp_shard": 3},
            model="llama-uneven",
            micro_batch=3,
            settings=("train.tokens_per_step=576",),
        ),
        Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven"),
        Case("TP2·FSDP2", "257 rows", TP2_DP2, model="llama-uneven"),
        Case("TP2·FSDP2", "tied", TP2_DP2, model="llama-tied"),
        Case("TP2·FSDP2", "qwen3", TP2_DP2, model="qwen3"),
        Case("TP2·FSDP2", "experts", TP2_DP2, model="qwen3-moe", tensor_parallel="auto"),
        Case("TP2·replicas", "257 rows", TP2_REPLICATE2, model="llama-uneven"),
        Case("HSDP", "257 rows", {"dp_replicate": 2, "dp_shard": 2}, model="llama-uneven"),
        Case("CP2·FSDP2", "257 rows", CP2_DP2, model="llama-uneven"),
    ],
    ids=lambda case: case.name,
)
def test_initial_weights_are_equal_bit_for_bit_however_they_are_divided(case: Case, workspace: Path) -> None:
    expected = digests(fresh_model(workspace, case.model))
    for record in set_up(case, workspace=workspace):
        assert record.initial == expected


def test_another_seed_draws_other_weights(workspace: Path) -> None:
    first, second = (fresh_model(workspace, "llama", seed=seed) for seed in (1, 2))
    same = {
        name for name, tensor in first.named_parameters() if torch.equal(tensor, second.get_parameter(name))
    }
    assert all("norm" in name for name in same)


def test_initial_weights_have_the_models_own_distribution(workspace: Path) -> None:
    model = fresh_model(workspace, "llama")
    deviations = [p.std().item() for name, p in model.named_parameters() if "norm" not in name]
    assert deviations == pytest.approx([model.config.initializer_range] * len(deviations), rel=0.05)
    assert all(torch.all(p == 1) for name, p in model.named_parameters() if "norm" in name)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("model_name", "max_shard_size", "num_files"),
    [("llama", "5GB", 1), ("llama", "100KB", 5), ("llama-tied", "5GB", 1), ("llama-tied", "100KB", 4)],
)
def test_weights_of_save_pretrained_are_loaded_by_slice(
    model_name: str, max_shard_size: str, num_files: int, own_workspace: Path
) -> None:
    model = fresh_model(own_workspace, model_name, seed=99)
    save_weights(model, own_workspace / model_name, max_shard_size=max_shard_size)
    assert len(list((own_workspace / model_name).glob("*.safetensors"))) >= num_files
    case = Case("TP2·DP2", "", TP2_DP2, model=model_name, settings=PRETRAINED)
    for record in set_up(case, workspace=own_workspace):
        assert record.initial == digests(model)


def test_the_first_loss_after_loading_is_that_of_from_pretrained(own_workspace: Path) -> None:
    save_weights(fresh_model(own_workspace, "llama", seed=99), own_workspace / "llama")
    record = set_up(Case("1", settings=PRETRAINED), workspace=own_workspace, num_steps=1)[0]
    plain = AutoModelForCausalLM.from_pretrained(own_workspace / "llama", local_files_only=True)
    data = open_samples(plain.config.vocab_size, workspace=own_workspace)
    samples = [data.dataset[int(i)] for i in data.order.sample_ids(0, count=GLOBAL_BATCH)]
    inputs, labels = (
        torch.stack([torch.from_numpy(part) for part in parts]) for parts in zip(*samples, strict=True)
    )
    expected = cross_entropy(plain(input_ids=inputs).logits.flatten(0, 1), labels.flatten()).item()
    assert record.metrics[0].loss == pytest.approx(expected, rel=1e-6)


def test_narrow_weights_are_widened_to_the_plans_dtype(own_workspace: Path) -> None:
    model = fresh_model(own_workspace, "llama", seed=99).to(torch.bfloat16)
    save_weights(model, own_workspace / "llama")
    record = set_up(Case("1", settings=PRETRAINED), workspace=own_workspace)[0]
    assert record.initial == digests(model.to(torch.float32))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("model.norm.weight", None, "missing model.norm.weight"),
        ("model.extra.weight", torch.zeros(3), "unexpected model.extra.weight"),
        (
            "lm_head.weight",
            torch.zeros(259, 64),
            r"lm_head.weight has shape \[259, 64\], the model \[260, 64\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    name: str, changed: Tensor | None, message: str, own_workspace: Path
) -> None:
    save_weights(fresh_model(own_workspace, "llama"), own_workspace / "llama")
    path = own_workspace / "llama" / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(name, None)
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, path)
    with pytest.raises(RankError, match=message):
        set_up(Case("1", settings=PRETRAINED), workspace=own_workspace)


def test_a_file_that_is_no_safetensors_is_named(own_workspace: Path) -> None:
    (own_workspace / "llama" / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(RankError, match=r"RunError: .*model\.safetensors is not a safetensors file"):
        set_up(Case("1", settings=PRETRAINED), workspace=own_workspace)


class CountingSlice:
    """A slice of a safetensors file that counts the bytes taken from it."""

    def __init__(self, inner: Any, taken: list[int]) -> None:
        self.inner, self.taken = inner, taken

    def __getitem__(self, block: Any) -> Tensor:
        tensor: Tensor = self.inner[block]
        self.taken.append(tensor.nbytes)
        return tensor

    def get_shape(self) -> list[int]:
        shape: list[int] = self.inner.get_shape()
        return shape


class CountingFile:
    """An open safetensors file whose slices count."""

    def __init__(self, inner: Any, taken: list[int]) -> None:
        self.inner, self.taken = inner, taken

    def keys(self) -> list[str]:
        names: list[str] = self.inner.keys()
        return names

    def get_slice(self, name: str) -> CountingSlice:
        return CountingSlice(self.inner.get_slice(name), self.taken)


def count_bytes_rank(rank: int, world_size: int, task: Task) -> tuple[int, int]:
    """(bytes taken from files, bytes of this rank's own shards)."""
    taken: list[int] = []
    real = safe_open
    vars(weights_files)["safe_open"] = lambda path, framework: CountingFile(
        real(path, framework=framework), taken
    )
    backend = TorchBackend(open_run(task, Observer()))
    run(task.graph, backend, stop_after=0)
    held = sum(local_of(parameter).nbytes for parameter in backend.state[nn.Module].parameters())
    dist.destroy_process_group()
    return sum(taken), held


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    "case",
    [
        SHARE,
        Case("TP4", "", {"tp": 4}, settings=PRETRAINED),
        Case("FSDP4", "", {"dp_shard": 4}, settings=PRETRAINED),
        Case("TP2·DP2", "experts", TP2_DP2, "qwen3-moe", tensor_parallel="auto", settings=PRETRAINED),
        Case("FSDP4", "experts", {"dp_shard": 4}, "qwen3-moe", settings=PRETRAINED),
    ],
    ids=lambda case: case.name,
)
def test_a_rank_reads_its_own_share_and_no_more(case: Case, own_workspace: Path) -> None:
    """One part in tp x dp_shard of the model, plus 5 % for norms and other replicated parts."""
    model = fresh_model(own_workspace, case.model)
    save_weights(model, own_workspace / case.model)
    task = Task(compile_case(case, workspace=own_workspace), own_workspace, own_workspace / "run")
    whole = sum(parameter.nbytes for parameter in model.parameters())
    parts = case.mesh.get("tp", 1) * case.mesh.get("dp_shard", 1)
    for taken, held in run_ranks(count_bytes_rank, 4, task, init=False):
        assert taken == held
        assert held <= whole / parts + 0.05 * whole


def test_all_that_does_not_fit_is_named_at_once(own_workspace: Path) -> None:
    save_weights(fresh_model(own_workspace, "llama"), own_workspace / "llama")
    path = own_workspace / "llama" / "model.safetensors"
    tensors = {key: tensor for key, tensor in load_file(path).items() if "q_proj" not in key}
    save_file({**tensors, "model.extra.weight": torch.zeros(3), "lm_head.weight": torch.zeros(2)}, path)
    with pytest.raises(RankError) as caught:
        set_up(Case("1", settings=PRETRAINED), workspace=own_workspace)
    for text in (
        "missing model.layers.0.self_attn.q_proj.weight, model.layers.1.self_attn.q_proj.weight",
        "lm_head.weight has shape [2], the model [260, 64]",
        "unexpected model.extra.weight",
    ):
        assert text in str(caught.value)


def test_values_that_differ_for_what_is_tied_are_refused(own_workspace: Path) -> None:
    save_weights(fresh_model(own_workspace, "llama-tied"), own_workspace / "llama-tied")
    path = own_workspace / "llama-tied" / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    case = Case("1", model="llama-tied", settings=PRETRAINED)
    save_file({**tensors, "lm_head.weight": embedding.clone()}, path)
    assert len(set_up(case, workspace=own_workspace)) == 1
    save_file({**tensors, "lm_head.weight": embedding + 1}, path)
    with pytest.raises(RankError, match=r"different values for .*lm_head\.weight"):
        set_up(case, workspace=own_workspace)
