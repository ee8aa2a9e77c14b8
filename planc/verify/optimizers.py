"""Optimizers of the reference, a second time: plain loops over whole parameters in one process."""

from __future__ import annotations

import inspect
import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from planc.optimizers.stored_adamw import codes
from planc.plan.optimizer import AdamW8bit, AdamWBf16, OwnOptimizer
from planc.runtime.extensions import arguments_of, load_extension


class _ByParameter(Optimizer):
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


class Muon(_ByParameter):
    """Muon over matrices, in the dtype of the model; `parts` are the rows of each that a parameter fuses.

    By Jordan's definition (https://kellerjordan.github.io/posts/muon) and Moonlight's scale
    (arXiv 2502.16982).
    """

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


_GOLDEN, _FIRST, _SECOND = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB


class StoredAdam(_ByParameter):
    """AdamW with stored moments, as their codes give them; `names` are those of the parameters."""

    def __init__(
        self, groups: list[dict[str, Any]], kind: AdamW8bit | AdamWBf16, *, names: dict[Tensor, str]
    ) -> None:
        super().__init__(groups, {})
        self.kind, self.names = kind, names

    def update(self, parameter: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        state["steps"] = number = state.get("steps", 0) + 1
        powers = []
        for index, (beta, added) in enumerate(zip(self.kind.betas, (gradient, gradient**2), strict=True)):
            moment = beta * state.get(index, torch.zeros_like(parameter)) + (1 - beta) * added
            powers.append(moment / (1 - beta**number))
            state[index] = self._stored(moment, index, name=self.names[parameter], step=number)
        mean, square = powers
        parameter.mul_(1 - lr * weight_decay).sub_(lr * mean / (square.sqrt() + self.kind.eps))

    def _stored(self, moment: Tensor, index: int, *, name: str, step: int) -> Tensor:
        """A moment as it is read again."""
        if isinstance(self.kind, AdamWBf16):
            seed = (_GOLDEN * step + zlib.crc32(name.encode())) % 2**64
            return _rounded(moment, key=int(_mix(np.array([seed], np.uint64))[0]) + index)
        if moment.ndim < 2:
            return moment.float().to(moment.dtype)
        values = torch.tensor(codes(is_signed=index == 0), dtype=torch.float32).to(moment.dtype)
        return torch.cat(
            [_nearest(block, values) for block in torch.split(moment, self.kind.block, dim=-1)], dim=-1
        )


def _nearest(block: Tensor, values: Tensor) -> Tensor:
    """Each element as the code next to it, of a scale for each row."""
    scale = block.abs().amax(-1, keepdim=True).float().to(block.dtype)
    shares = torch.where(scale > 0, block / scale.clamp(min=torch.finfo(torch.float32).tiny), 0)
    # The numbers halfway between two codes are float32 as well.
    halfway = ((values[:-1].float() + values[1:].float()) / 2).to(block.dtype)
    return values[(shares.unsqueeze(-1) > halfway).sum(-1)] * scale


def _rounded(moment: Tensor, *, key: int) -> Tensor:
    """Each element as a bfloat16 number next to it; docs/concepts/determinism.md has the bits."""
    rows = moment.float().reshape(-1, moment.shape[-1]) if moment.ndim > 1 else moment.float().reshape(1, -1)
    with np.errstate(over="ignore"):
        hashed = _mix(np.array([(key + _GOLDEN) % 2**64], np.uint64))
        by_row = _mix(hashed + np.uint64(_GOLDEN) * np.arange(1, len(rows) + 1, dtype=np.uint64))
        columns = _mix(np.uint64(_GOLDEN) * np.arange(1, rows.shape[1] + 1, dtype=np.uint64))
        bits = columns.astype(np.uint32) ^ by_row.astype(np.uint32)[:, None]
        bits *= ((by_row >> np.uint64(32)).astype(np.uint32) | np.uint32(1))[:, None]
        bits ^= bits >> np.uint32(16)
        bits *= np.uint32(0x7FEB_352D)
        raised = rows.numpy().view(np.uint32) + (bits >> np.uint32(16))
    kept = (raised & np.uint32(0xFFFF_0000)).view(np.float32)
    return torch.from_numpy(kept).view(moment.shape).to(moment.dtype)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
        return value ^ (value >> np.uint64(31))


class OwnUpdates(Optimizer):
    """An optimizer of the plan's own: each parameter with its own state, which begins with zeros."""

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
