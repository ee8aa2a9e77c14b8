"""The rules for activations, against what autograd really saves on one device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_plan
from planc.estimate.activations import activations
from planc.estimate.estimate import estimate
from planc.estimate.rank_work import RankWork, rank_work
from planc.inventory.load import load_inventory
from planc.runtime.torch.attention.register import register_attention
from tests.parity.cases import GLOBAL_BATCH, MODELS, SEQUENCE_LENGTH, Case, compile_case
from tests.plans import PLANS, TINY, checked, write_plan

ESTIMATED = [name for name in MODELS if name not in ("llama-tied", "starcoder")]
"""Tying changes no activation. Layer norms in float32 keep two numbers of each token, 0.2 % of a small
Starcoder's, which no formula has."""


def work_of(
    model: str, dtype: str, *, workspace: Path, attention: str = "sdpa", frozen: tuple[str, ...] = ()
) -> RankWork:
    settings = (f"model.dtype={dtype}", f"model.attention={attention}")
    case = Case("1", model=model, settings=settings, frozen=frozen)
    inventory = load_inventory(workspace / model, cache_dir=workspace).inventory
    return rank_work(compile_case(case, workspace=workspace), inventory)


def saved_bytes(
    model: str,
    dtype: torch.dtype,
    *,
    workspace: Path,
    attention: str = "sdpa",
    frozen: tuple[str, ...] = (),
) -> int:
    """Bytes of all distinct storages that forward saves, without parameters, token ids and rotary tables."""
    config = AutoConfig.from_pretrained(workspace / model)
    if attention == "sdpa":
        attention = register_attention("plain", group=None, balance="none", name="saved")
    config._attn_implementation = attention
    module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name in frozen:
        module.get_submodule(name).requires_grad_(False)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    ids = torch.zeros(GLOBAL_BATCH, SEQUENCE_LENGTH, dtype=torch.int64)
    positions = torch.arange(SEQUENCE_LENGTH).expand(ids.shape)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(input_ids=ids, position_ids=positions, use_cache=False)
    assert output.logits.requires_grad
    rotary = (GLOBAL_BATCH, 1, SEQUENCE_LENGTH, config.head_dim)
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in kept
        if tensor.is_floating_point() and tensor.shape != rotary
    }
    return sum(num_bytes for pointer, num_bytes in storages.items() if pointer not in weights)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ESTIMATED)
def test_activations_are_what_autograd_saves(model: str, dtype: str, workspace: Path) -> None:
    measured = saved_bytes(model, getattr(torch, dtype), workspace=workspace)
    assert activations(work_of(model, dtype, workspace=workspace)).kept == measured


FROZEN: Mapping[str, tuple[str, ...]] = {
    "lowest": ("model.embed_tokens", "model.layers.0"),
    "attention": ("model.layers.0.self_attn", "model.layers.1.self_attn"),
    "outputs of kernels": ("model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"),
    "norms": ("model.layers.0.input_layernorm", "model.layers.1.post_attention_layernorm"),
    "head": ("lm_head",),
    "from the middle of a layer": (
        *("model.embed_tokens", "model.layers.0.self_attn"),
        *("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"),
    ),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN.keys())
def test_what_a_frozen_weight_alone_would_read_is_not_kept(
    frozen: tuple[str, ...], attention: str, workspace: Path
) -> None:
    measured = saved_bytes("llama", torch.bfloat16, workspace=workspace, attention=attention, frozen=frozen)
    work = work_of("llama", "bfloat16", workspace=workspace, attention=attention, frozen=frozen)
    assert activations(work).kept == measured


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eager_attention_keeps_every_score(dtype: str, workspace: Path) -> None:
    measured = saved_bytes("llama", getattr(torch, dtype), workspace=workspace, attention="eager")
    assert activations(work_of("llama", dtype, workspace=workspace, attention="eager")).kept == measured


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_capped_scores_are_kept_once_more(dtype: str, tmp_path: Path) -> None:
    """Measured as a difference: Gemma's norms and its capped logits are other matters."""
    config = json.loads((PLANS / "models" / "tiny-gemma2" / "config.json").read_text(encoding="utf-8"))
    measured = []
    for name, cap in (("capped", 50.0), ("plain", None)):
        (tmp_path / name).mkdir()
        text = json.dumps(config | {"attn_logit_softcapping": cap})
        (tmp_path / name / "config.json").write_text(text, encoding="utf-8")
        measured.append(saved_bytes(name, getattr(torch, dtype), workspace=tmp_path, attention="eager"))
    works = (work_of(name, dtype, workspace=tmp_path, attention="eager") for name in ("capped", "plain"))
    capped, plain = (activations(work).kept for work in works)
    assert capped - plain == measured[0] - measured[1] > 0


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3-moe", "tiny-deepseek-v3"])
def test_any_module_may_be_checkpointed(model: str, tmp_path: Path) -> None:
    """Also one that saves nothing which could be computed again, such as an embedding."""
    divided = TINY.replace("  auto\n", '  "model.embed_tokens" -> embedding_rowwise\n')
    text = divided.replace("tiny-llama", model)
    inventory = checked(write_plan(tmp_path, text=text)).inventory
    assert inventory is not None
    estimated = set()
    for module in inventory.modules:
        block = f'\nactivation_checkpoint {{\n  "{module.fqn}" -> full\n}}\n'
        found = check_plan(write_plan(tmp_path, text=text + block))
        if found.graph is not None and found.ok:
            assert estimate(found.graph, inventory).memory.held_bytes > 0
            estimated.add(module.fqn)
    assert {"model.embed_tokens", "model.layers.0.mlp", "model.norm", "lm_head"} <= estimated
