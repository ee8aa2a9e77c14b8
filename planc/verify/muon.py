"""Muon in one process, a second time: plain loops over matrices, in the dtype of the model.

By Jordan's definition (https://kellerjordan.github.io/posts/muon) and Moonlight's scale (arXiv 2502.16982).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from planc.verify.by_parameter import ByParameter


class Muon(ByParameter):
    """`parts` are the rows of each matrix that a parameter fuses."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        lr_scale: str,
        parts: Mapping[Tensor, tuple[int, ...]],
    ) -> None:
        super().__init__(groups, {})
        self.momentum, self.nesterov, self.ns_steps = momentum, nesterov, ns_steps
        self.lr_scale, self.parts = lr_scale, parts

    def update(self, parameter: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        average = state.setdefault("average", torch.zeros_like(parameter))
        average.mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)
        direction = average
        if self.nesterov:
            direction = (1 - self.momentum) * gradient + self.momentum * average
        parameter.mul_(1 - lr * weight_decay)
        for whole, part in self._matrices(parameter, direction):
            whole.sub_(lr * self._factor(part) * self._orthogonal(part))

    def _matrices(self, parameter: Tensor, direction: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The matrices of a parameter and of its direction, as views."""
        rows = self.parts.get(parameter, (parameter.shape[-2],))
        whole = parameter.unsqueeze(0) if parameter.ndim == 2 else parameter
        partner = direction.unsqueeze(0) if parameter.ndim == 2 else direction
        for expert in range(len(whole)):
            start = 0
            for number in rows:
                yield whole[expert, start : start + number], partner[expert, start : start + number]
                start += number

    def _factor(self, matrix: Tensor) -> float:
        outputs, inputs = matrix.shape
        if self.lr_scale == "match_rms_adamw":
            return 0.2 * math.sqrt(max(outputs, inputs))
        return math.sqrt(max(1.0, outputs / inputs))

    def _orthogonal(self, matrix: Tensor) -> Tensor:
        if matrix.shape[0] > matrix.shape[1]:
            return self._orthogonal(matrix.T).T
        x = matrix / max(float(torch.linalg.matrix_norm(matrix)), 1e-7)
        for _ in range(self.ns_steps):
            squared = x @ x.T
            x = 3.4445 * x + (-4.7750 * squared + 2.0315 * squared @ squared) @ x
        return x
