"""Models whose code asks which experts have tokens, which nothing on the meta device can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe, refuse_skipped
from planc.modeling.first_positions import FirstPositions

DBRX = {
    "architecture": "DbrxForCausalLM",
    "model_type": "dbrx",
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
}


def test_experts_that_are_looped_over_have_their_flow(write_config: Callable[..., Path]) -> None:
    inventory = probe(write_config(**DBRX))
    experts = inventory.get("transformer.blocks.0.ffn.experts.mlp")
    assert experts is not None
    assert experts.sources == ("transformer.blocks.0.norm_attn_norm.norm_2",)
    reading = {module.class_name for module in inventory.modules if module.reads_values}
    assert reading == {"DbrxExperts"}


def test_positions_without_values_are_the_first() -> None:
    mask = torch.ones(2, 3, device="meta")
    answers: list[None] = []
    with FirstPositions(lambda tensor: tensor.is_meta, lambda: answers.append(None)):
        assert mask.nonzero().tolist() == [[0, 0]]
        assert [rows.shape for rows in torch.where(mask)] == [(6,), (6,)]
    assert len(answers) == 2


def test_values_that_are_there_are_used() -> None:
    answers: list[None] = []
    with FirstPositions(lambda tensor: tensor.is_meta, lambda: answers.append(None)):
        assert torch.tensor([0, 3]).nonzero().tolist() == [[1]]
        assert [rows.tolist() for rows in torch.where(torch.tensor([0, 3]))] == [[1]]
    assert not answers


def test_a_member_of_a_list_that_did_not_run_is_refused() -> None:
    modules = ("layers.0.experts.0.up", "layers.0.experts.1.up")
    with pytest.raises(InventoryError, match=r"`layers\.0\.experts\.1\.up` may not"):
        refuse_skipped("MoE", modules, seen={"layers.0.experts.0.up"})


def test_a_module_that_is_never_called_is_none_that_was_chosen() -> None:
    refuse_skipped("MoE", ("layers.0.router", "layers.0.up"), seen={"layers.0.up"})
