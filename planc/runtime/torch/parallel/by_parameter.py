"""An optimizer that updates one parameter after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer


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
