"""The balance of experts finds the logits, choices and weights of every mixture's routers, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.ops import BalanceExperts, SumRoutes, SwitchLoss
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.inventory.routers import Router, has_other_rows, routers, unrouted
from planc.runtime.interpreter import Position
from planc.runtime.torch.state import LocalBatch, TokenCount
from planc.runtime.torch.training.balance import Balance, balancing
from tests.models.architectures import MIXTURES, architectures
from tests.models.tiny import tiny_config
from tests.slow import slow_except

SHAPE = (2, 16)
COEFFICIENT = 2.0
LIMIT = 1e-5
"""Relative, in float32."""
REFUSED = {
    **dict.fromkeys(("jetmoe", "qwen4_exp_text"), "no inventory"),
    **dict.fromkeys(("llama4_text", "longcat_flash", "dbrx"), "unknown router"),
    "zaya": "unknown router",
    "inkling_text": "other rows",
}


def verdict(folder: Path) -> tuple[str, tuple[Router, ...]]:
    """Why a model's balance is refused, and its routers."""
    try:
        inventory = probe(folder)
    except InventoryError:
        return "no inventory", ()
    known = tuple(routers(inventory))
    if not known or unrouted(inventory):
        return "unknown router", known
    return "other rows" if any(has_other_rows(inventory, one) for one in known) else "", known


def by_planc(model: nn.Module, known: tuple[Router, ...], tokens: Tensor) -> dict[str, Tensor]:
    """The gradients of planc's balance loss alone, on one rank."""
    loss = SwitchLoss(coefficient=COEFFICIENT, num_sequences=SHAPE[0], pooled=False)
    op = BalanceExperts(layers=(), loss=loss, z_loss=None, num_sequences=SHAPE[0], span=None)
    balance = Balance(op, device=torch.device("cpu"), own_tokens=lambda of_tokens: of_tokens)
    balance.num_experts[0] = {one.experts: one.num_experts for one in known}
    for one in known:
        balance.attach(
            one.experts, router=model.get_submodule(one.fqn), experts=model.get_submodule(one.experts)
        )
    batch = LocalBatch(tokens, tokens, torch.arange(SHAPE[1]).expand(SHAPE))
    with balancing(balance, Position(step=1), batch, TokenCount(torch.tensor(tokens.numel()))):
        logits = model(input_ids=tokens, use_cache=False).logits
    assert balance.last is not None
    alone: Any = SimpleNamespace(sum_over=lambda tensor, dims: tensor)
    balance.last.finish(alone, SumRoutes(over=(), span=None))
    (logits * 0).sum().backward()
    return gradients(model)


def by_hand(model: nn.Module, known: tuple[Router, ...], tokens: Tensor) -> dict[str, Tensor]:
    """Those of the definition, from what each router and its experts are called with."""
    inputs: dict[str, Tensor] = {}
    chosen: dict[str, Tensor] = {}
    for one in known:

        def keep_input(_: nn.Module, arguments: Any, name: str = one.experts) -> None:
            inputs[name] = arguments[0].flatten(0, -2)

        def keep_chosen(_: nn.Module, arguments: Any, keywords: Any, name: str = one.experts) -> None:
            tensors = (*arguments, *keywords.values())
            chosen[name] = next(one for one in tensors if one.dtype == torch.int64)

        model.get_submodule(one.fqn).register_forward_pre_hook(keep_input)
        model.get_submodule(one.experts).register_forward_pre_hook(keep_chosen, with_kwargs=True)
    model(input_ids=tokens, use_cache=False)
    added = torch.zeros(())
    for one in known:
        router = model.get_submodule(one.fqn)
        weight = next(value for value in router.parameters() if value.shape[0] == one.num_experts)
        bias = getattr(router, "bias", None)
        is_bias = isinstance(bias, nn.Parameter) and bias.shape == (one.num_experts,)
        logits = F.linear(inputs[one.experts].float(), weight.float(), bias if is_bias else None)
        for expert in range(one.num_experts):
            share = (chosen[one.experts] == expert).any(-1).float().mean()
            added = added + COEFFICIENT * one.num_experts * share * logits.softmax(-1)[:, expert].mean()
    torch.autograd.backward(added)
    return gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Of all parameters; those that are 0 are left out."""
    every = {name: one.grad for name, one in model.named_parameters()}
    return {name: one for name, one in every.items() if one is not None and one.any()}


@pytest.mark.parametrize("model_type", slow_except(sorted(MIXTURES), "gpt_oss"))
def test_balance_is_that_of_the_models_own_routers_or_refused(model_type: str, tmp_path: Path) -> None:
    config = tiny_config(model_type, architectures()[model_type])
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refused, known = verdict(tmp_path)
    assert refused == REFUSED.get(model_type, "")
    if refused:
        return
    torch.manual_seed(0)
    tokens = torch.randint(0, 100, SHAPE)
    first: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval()
    second: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval()
    for name, one in first.named_parameters():
        nn.init.normal_(one, mean=float("norm" in name), std=0.1)
    for name, table in first.named_buffers():
        if name.endswith("tid2eid"):
            # Zeros as made: each token would choose the first expert twice.
            table.copy_(torch.rand(len(table), 4).argsort(-1)[:, : table.shape[1]])
    second.load_state_dict(first.state_dict())
    wanted, got = by_hand(first, known, tokens), by_planc(second, known, tokens)
    assert wanted.keys() == got.keys() and wanted
    scale = max(one.abs().max() for one in wanted.values())
    for name, one in wanted.items():
        assert (got[name] - one).abs().max() < LIMIT * scale, name
