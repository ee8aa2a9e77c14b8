"""The rules for activations, against what autograd really saves on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, AutoModelForCausalLM

from planc.estimate.activations import activations
from planc.estimate.rank_work import RankWork, rank_work
from planc.inventory.load import load_inventory
from planc.runtime.backends.torch.attention.register import register_attention
from tests.parity.cases import GLOBAL_BATCH, MODELS, SEQUENCE_LENGTH, Case, compile_case


def work_of(model: str, dtype: str, *, workspace: Path) -> RankWork:
    case = Case("1", model=model, settings=(f"model.dtype={dtype}",))
    inventory = load_inventory(workspace / model, cache_dir=workspace).inventory
    return rank_work(compile_case(case, workspace=workspace), inventory)


def saved_bytes(model: str, dtype: torch.dtype, *, workspace: Path) -> int:
    """Bytes of all distinct storages that forward saves, without parameters, token ids and rotary tables."""
    config = AutoConfig.from_pretrained(workspace / model)
    config._attn_implementation = register_attention("plain", group=None, balance="none", name="saved")
    module = AutoModelForCausalLM.from_config(config, dtype=dtype)
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [name for name in MODELS if name != "llama-tied"])
def test_activations_are_what_autograd_saves(model: str, dtype: str, workspace: Path) -> None:
    measured = saved_bytes(model, getattr(torch, dtype), workspace=workspace)
    assert activations(work_of(model, dtype, workspace=workspace)).kept == measured
