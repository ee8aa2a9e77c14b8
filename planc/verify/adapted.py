"""Adapters in one process: layers and experts compute with `W + scale * B A`, whole."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from planc.plan.adapter import Lora


def adapt_layer(module: nn.Module, adapter: Lora) -> None:
    """Give a linear layer, or each of stacked experts, an adapter by the names that a run has."""
    rank, scale = adapter.rank, adapter.alpha
    scale /= math.sqrt(rank) if adapter.rslora else rank
    layer: Any = module
    if not isinstance(module, nn.Linear):
        _adapt_experts(layer, rank=rank, scale=scale)
        return
    layer.lora_A = nn.Linear(layer.in_features, rank, bias=False, dtype=layer.weight.dtype)
    layer.lora_B = nn.Linear(rank, layer.out_features, bias=False, dtype=layer.weight.dtype)
    if adapter.dora:
        layer.lora_magnitude_vector = nn.Module()
        layer.lora_magnitude_vector.weight = nn.Parameter(torch.empty_like(layer.weight[:, 0]))
    layer.forward = partial(_adapted, layer, scale)


def _adapted(layer: Any, scale: float, x: Tensor) -> Tensor:
    whole = layer.weight + scale * layer.lora_B.weight @ layer.lora_A.weight
    if hasattr(layer, "lora_magnitude_vector"):
        lengths = whole.detach().square().sum(1).sqrt()
        whole = (layer.lora_magnitude_vector.weight / lengths).unsqueeze(1) * whole
    return functional.linear(x, whole, layer.bias)


def _adapt_experts(experts: Any, *, rank: int, scale: float) -> None:
    names = tuple(name for name, weight in experts.named_parameters(recurse=False) if weight.ndim == 3)
    for name in names:
        weight = getattr(experts, name)
        number, outputs, inputs = weight.mT.shape if experts.is_transposed else weight.shape
        for part, shape in (("A", (number, rank, inputs)), ("B", (number, outputs, rank))):
            values = nn.Parameter(torch.empty(shape, dtype=weight.dtype))
            experts.register_parameter(f"{name}_lora_{part}", values)
    experts.forward = partial(_with_whole, experts, names, scale, experts.forward)


def _with_whole(experts: Any, names: tuple[str, ...], scale: float, inner: Any, *arguments: Any) -> Tensor:
    """The output of the module's own code, which sees the weights as they are with their adapters."""
    own = dict(experts._parameters)
    for name in names:
        change = scale * getattr(experts, f"{name}_lora_B") @ getattr(experts, f"{name}_lora_A")
        experts._parameters[name] = own[name] + (change.mT if experts.is_transposed else change)
    output: Tensor = inner(*arguments)
    experts._parameters.update(own)
    return output
