"""The part of a tensor that this rank holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_of(tensor: Tensor) -> Tensor:
    """The local shard of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def layout_of(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    """Makes of this rank's part a tensor with the layout of `tensor`."""
    if not isinstance(tensor, DTensor):
        return lambda local: local
    return partial(
        DTensor.from_local,
        device_mesh=tensor.device_mesh,
        placements=tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
