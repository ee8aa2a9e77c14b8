"""An optimizer of the plan's own, called by whole tensors: the reference for its parts on ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from planc.plan.optimizer import OwnOptimizer
from planc.runtime.extensions import arguments_of, load_extension


class OwnUpdates(Optimizer):
    """Each parameter with its own state, which begins with zeros."""

    def __init__(self, groups: list[dict[str, Any]], kind: OwnOptimizer, *, base: Path) -> None:
        super().__init__(groups, {"lr": kind.lr})
        self.kind = kind
        self.function = load_extension(kind.extension, base=base, is_allowed=True)
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        known = inspect.signature(self.function).parameters
        for group in self.param_groups:
            given = {"lr": group["lr"], "weight_decay": group["weight_decay"], "step": self.num_steps}
            given = {name: value for name, value in given.items() if name in known}
            for parameter in group["params"]:
                state = self.state[parameter]
                for name in self.kind.state:
                    state.setdefault(name, torch.zeros_like(parameter))
                if parameter.grad is not None:
                    gradient = parameter.grad.clone()
                    self.function(parameter, gradient, state, **given, **arguments_of(self.kind.extension))
