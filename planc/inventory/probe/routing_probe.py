"""The routing that reaches stacked experts in one forward. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from planc.inventory.schema import Routing


def routing_of(arguments: Sequence[Any], *, num_tokens: int) -> Routing | None:
    """The routing among a module's arguments: expert indices and weights, [tokens, experts_per_token]."""
    tensors = [value for value in arguments if isinstance(value, Tensor) and value.ndim == 2]
    numbers = [tensor for tensor in tensors if tensor.dtype == torch.long and len(tensor) == num_tokens]
    for tensor in tensors:
        if numbers and tensor.is_floating_point() and tensor.shape == numbers[0].shape:
            return Routing(tensor.shape[1], in_float32=tensor.dtype == torch.float32)
    return None


def choice_bias(parent: nn.Module, experts: nn.Module) -> str:
    """The path to the one saved tensor next to experts that has no gradient, is a bias, and has one of each.

    Every model of transformers calls it a bias: `e_score_correction_bias`, `expert_bias`, `balancing_biases`.
    """
    numbers = {parameter.shape[0] for parameter in experts.parameters() if parameter.ndim == 3}
    inside = {id(tensor) for tensor in (*experts.parameters(), *experts.buffers())}
    saved = parent.state_dict(keep_vars=True)
    paths = [
        path
        for path, tensor in saved.items()
        if "bias" in path.rpartition(".")[2]
        and id(tensor) not in inside
        and {tensor.numel()} == numbers
        and tensor.is_floating_point()
        and not tensor.requires_grad
    ]
    return paths[0] if len(paths) == 1 else ""
