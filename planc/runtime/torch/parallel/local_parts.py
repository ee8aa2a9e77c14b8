"""The part of a tensor that this rank holds."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_of(tensor: Tensor) -> Tensor:
    """The local shard of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
