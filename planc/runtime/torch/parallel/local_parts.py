"""The part of a tensor that this rank holds, and optimizers that update one parameter after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from planc.optimizers.optimizer import Kept


def local_of(tensor: Tensor) -> Tensor:
    """The local shard of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def kept_like(tensor: Tensor, kept: Kept) -> Tensor:
    """Zeros for what an optimizer keeps of a tensor, in its layout."""
    dtype = getattr(torch, kept.dtype) if kept.dtype else tensor.dtype
    local = local_of(tensor.detach())
    zeros = torch.zeros(kept.shape(local.shape), dtype=dtype, device=local.device)
    if not isinstance(tensor, DTensor):
        return zeros
    whole = torch.empty(kept.shape(tensor.shape), device="meta")
    return DTensor.from_local(
        zeros,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


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


class ByParameter(Optimizer):
    """Calls `update` for each parameter that has a gradient, with its group's rate and weight decay."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there already"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, lr=float(group["lr"]), weight_decay=group["weight_decay"])

    @abstractmethod
    def update(self, parameter: Tensor, *, lr: float, weight_decay: float) -> None:
        """Update a parameter, or this rank's part of it, by its gradient."""
