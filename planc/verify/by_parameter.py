"""Optimizers of the reference: a plain loop over whole parameters in one process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer


class ByParameter(Optimizer):
    """An optimizer whose step updates one parameter after the other."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, lr=group["lr"], weight_decay=group["weight_decay"])

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> None:
        """Update a parameter in place."""
