"""AdamW with stored moments in one process, a second time: whole tensors, as their codes give them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planc.optimizers.stored_adamw import codes
from planc.plan.optimizer import AdamW8bit, AdamWBf16
from planc.verify.by_parameter import ByParameter

_GOLDEN, _FIRST, _SECOND = 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB


class StoredAdam(ByParameter):
    """`names` are those of the parameters."""

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
            return _rounded(moment, key=int(mix(np.array([seed], np.uint64))[0]) + index)
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
        hashed = mix(np.array([(key + _GOLDEN) % 2**64], np.uint64))
        by_row = mix(hashed + np.uint64(_GOLDEN) * np.arange(1, len(rows) + 1, dtype=np.uint64))
        columns = mix(np.uint64(_GOLDEN) * np.arange(1, rows.shape[1] + 1, dtype=np.uint64))
        bits = columns.astype(np.uint32) ^ by_row.astype(np.uint32)[:, None]
        bits *= ((by_row >> np.uint64(32)).astype(np.uint32) | np.uint32(1))[:, None]
        bits ^= bits >> np.uint32(16)
        bits *= np.uint32(0x7FEB_352D)
        raised = rows.numpy().view(np.uint32) + (bits >> np.uint32(16))
    kept = (raised & np.uint32(0xFFFF_0000)).view(np.float32)
    return torch.from_numpy(kept).view(moment.shape).to(moment.dtype)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
        return value ^ (value >> np.uint64(31))
