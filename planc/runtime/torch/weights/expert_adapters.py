"""Adapters of stacked experts: each expert has its own, in stacks next to those of the weights.

A and B are parameters of the module of experts, with its experts as their first dimension, so all that shards
or dispatches experts takes them as it takes the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from planc.graph.ops import AttachAdapters
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.vocab import DOWN, UP

Product: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Rows in the order of experts, times a matrix of each: (rows, [experts, in, out], ends of experts)."""


def attach_to_experts(experts: Any, stacks: Iterable[str], *, op: AttachAdapters) -> None:
    """Give each expert an adapter for its part of these stacks, and let the module compute with them."""
    for name in stacks:
        weight = getattr(experts, name)
        number, num_outputs, num_inputs = _as_linear(experts, weight).shape
        # On meta: a pipeline or a shard decides later what of it this rank holds.
        dtype = TORCH_DTYPES[op.dtype] if op.dtype is not None else weight.dtype
        like: Any = {"device": "meta", "dtype": dtype}
        for part, shape in ((DOWN, (op.rank, num_inputs)), (UP, (num_outputs, op.rank))):
            experts.register_parameter(f"{name}_{part}", nn.Parameter(torch.empty(number, *shape, **like)))
    experts.adapter_scale = op.scale
    # Its own config: others are experts without adapters.
    experts.config = deepcopy(experts.config)
    is_looping = experts.config._experts_implementation == "eager"
    name, product = ("planc_looping", _looping) if is_looping else ("planc_grouped", _grouped)
    ALL_EXPERTS_FUNCTIONS.register(name, partial(_computed, product=product))
    experts.config._experts_implementation = name


def are_transposed(experts: nn.Module) -> bool:
    """Whether a module of experts stores its weights as [experts, in, out]."""
    return bool(experts.is_transposed)


def _as_linear(experts: nn.Module, stack: Tensor) -> Tensor:
    """A stack as [experts, out, in]."""
    return stack.mT if are_transposed(experts) else stack


def _computed(
    experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, *, product: Product
) -> Tensor:
    """The weighted sum of the outputs of each token's experts: [tokens, features]."""
    of_row, order = torch.sort(top_k_index.reshape(-1), stable=True)
    counts = of_row.new_zeros(experts.num_experts).scatter_add(0, of_row, torch.ones_like(of_row))
    ends = counts.cumsum(0, dtype=torch.int32)

    def linear(name: str, rows: Tensor) -> Tensor:
        weight, down, up = (getattr(experts, part) for part in (name, f"{name}_{DOWN}", f"{name}_{UP}"))
        output = product(rows, _as_linear(experts, weight).mT, ends)
        output += product(product(rows, down.mT, ends) * experts.adapter_scale, up.mT, ends)
        return output + getattr(experts, f"{name}_bias")[of_row] if experts.has_bias else output

    rows = hidden_states[order // top_k_index.shape[-1]]
    if experts.has_gate:
        inner = experts._apply_gate(linear("gate_up_proj", rows))
    else:
        inner = experts.act_fn(linear("up_proj", rows))
    results = linear("down_proj", inner)
    if experts.has_post_expert_norm:
        results = experts.post_expert_norm(results)
    weighted = results * top_k_weights.reshape(-1, 1)[order]
    of_token = weighted[torch.argsort(order)].view(*top_k_index.shape, -1)
    return of_token.sum(1).to(hidden_states.dtype)


def _grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return functional.grouped_mm(rows, matrices, offs=ends)


def _looping(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """PyTorch's grouped products have no float64."""
    parts = rows.tensor_split(ends[:-1].tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
