"""The routing that reaches stacked experts in one forward. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planc.inventory.schema import Routing


def routing_of(arguments: Sequence[Any], *, num_tokens: int) -> Routing | None:
    """The routing among a module's arguments: expert indices and weights, [tokens, experts_per_token]."""
    tensors = [value for value in arguments if isinstance(value, Tensor) and value.ndim == 2]
    numbers = [tensor for tensor in tensors if tensor.dtype == torch.long and len(tensor) == num_tokens]
    for tensor in tensors:
        if numbers and tensor.is_floating_point() and tensor.shape == numbers[0].shape:
            return Routing(tensor.shape[1], in_float32=tensor.dtype == torch.float32)
    return None
