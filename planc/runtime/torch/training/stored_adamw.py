"""AdamW whose moments are stored in few bits, by an element's place in the whole parameter."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from planc.modeling.draws import GOLDEN, mix
from planc.optimizers.stored_adamw import AT_ONCE, MOMENTS, SCALE, AdamW8bit, StoredAdamW, codes
from planc.runtime.torch import private
from planc.runtime.torch.dropout.masks import random_bits, row_hashes
from planc.runtime.torch.parallel.blocks import Slices, blocks
from planc.runtime.torch.parallel.local_parts import ByParameter, kept_like, local_of
from planc.runtime.torch.parallel.packing import Packing


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of this rank's part of a parameter: as they are numbered there, and in the whole parameter.

    `key` is a hash of the parameter's name and the step.
    """

    own: slice
    numbers: Tensor
    columns: Tensor
    key: Tensor


class StoredAdam(ByParameter):
    """AdamW of one of the kinds of `StoredAdamW`: a parameter after the other, some rows at a time."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        settings: StoredAdamW,
        *,
        lr: float,
        names: Mapping[Any, str],
        packings: Mapping[Tensor, Packing],
    ) -> None:
        super().__init__(groups, {"lr": lr, "torch_class": settings.torch_class, **settings.arguments})
        self.settings = settings
        self._names = names
        members = (parameter for group in self.param_groups for parameter in group["params"])
        # What a strided shard is of the whole, PyTorch finds out with tensors.
        with private.without_modes():
            self._places = {member: _along(member, packings.get(member)) for member in members}

    def update(self, parameter: Tensor, *, lr: float, weight_decay: float) -> None:
        state, given = self.state[parameter], parameter.grad
        assert given is not None, "the caller looked"
        if not state:
            kept = self.settings.kept(parameter.ndim)
            state.update(
                {"step": torch.zeros(()), **{tensor.name: kept_like(parameter, tensor) for tensor in kept}}
            )
        state["step"] += 1
        stored = {name: _as_rows(local_of(tensor)) for name, tensor in state.items() if name != "step"}
        weights, gradients = _as_rows(local_of(parameter)), _as_rows(local_of(given))
        beta, beta_sq = self.settings.betas
        steps = state["step"].double()
        correction, correction_sq = 1 - beta**steps, 1 - beta_sq**steps
        dtype = torch.promote_types(weights.dtype, torch.float32)
        for rows in self._rows(parameter, weights, steps=steps):
            gradient = gradients[rows.own].to(dtype)
            mean = _read(stored, MOMENTS[0], rows, self.settings, dtype=dtype).lerp_(gradient, 1 - beta)
            square = _read(stored, MOMENTS[1], rows, self.settings, dtype=dtype)
            square.mul_(beta_sq).addcmul_(gradient, gradient, value=1 - beta_sq)
            _store(mean, stored, MOMENTS[0], rows, self.settings)
            _store(square, stored, MOMENTS[1], rows, self.settings)
            divisor = square.div_(correction_sq).sqrt_().add_(self.settings.eps)
            moved = weights[rows.own].to(dtype).mul_(1 - lr * weight_decay)
            moved.sub_(mean.div_(correction).div_(divisor), alpha=lr)
            weights[rows.own].copy_(moved)

    def _rows(self, parameter: Tensor, weights: Tensor, *, steps: Tensor) -> Iterator[_Rows]:
        """All rows of this rank's part, some at a time."""
        *leading, columns = (_numbers(pieces, weights.device) for pieces in self._places[parameter])
        numbers = torch.zeros(1, dtype=torch.int64, device=weights.device)
        for length, places in zip(parameter.shape, leading, strict=False):
            numbers = (numbers.unsqueeze(-1) * length + places).flatten()
        key = mix(GOLDEN * steps.long() + zlib.crc32(self._names[parameter].encode()))
        num_rows, num_columns = weights.shape
        at_once = max(1, AT_ONCE // max(1, num_columns))
        for first in range(0, num_rows if num_columns else 0, at_once):
            own = slice(first, min(first + at_once, num_rows))
            yield _Rows(own, numbers[own], columns, key)


def _as_rows(tensor: Tensor) -> Tensor:
    """A tensor as a matrix of its rows, in the same memory."""
    return tensor.detach().view(-1, tensor.shape[-1]) if tensor.ndim > 1 else tensor.detach().view(1, -1)


def _along(parameter: Tensor, packing: Packing | None) -> tuple[tuple[slice, ...], ...]:
    """Return the slices of the whole parameter that this rank holds, along each dimension."""
    own = [*blocks(parameter, packing)] if isinstance(parameter, DTensor) else [_whole(parameter)]
    packed = packing.tensor_dim if packing else None
    dims = range(max(1, parameter.ndim))
    return tuple(tuple(whole[dim] for whole, _ in (own if dim == packed else own[:1])) for dim in dims)


def _numbers(pieces: Sequence[slice], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(piece.start, piece.stop, device=device) for piece in pieces])


def _whole(tensor: Tensor) -> tuple[Slices, Slices]:
    slices = tuple(slice(0, size) for size in tensor.shape)
    return slices, slices


def _read(
    stored: Mapping[str, Tensor], name: str, rows: _Rows, settings: StoredAdamW, *, dtype: torch.dtype
) -> Tensor:
    """A copy of a moment's rows, in the dtype of the update."""
    own = stored[name][rows.own]
    if own.dtype != torch.uint8:
        return own.to(dtype, copy=True)
    assert isinstance(settings, AdamW8bit), "no other optimizer has codes"
    values, _ = _codes(name, own.device)
    scales = stored[name + SCALE][rows.own]
    return values[own.int()].to(dtype).mul_(_spread(scales, own.shape[-1], block=settings.block))


def _store(
    moment: Tensor, stored: Mapping[str, Tensor], name: str, rows: _Rows, settings: StoredAdamW
) -> None:
    """Store rows of a moment: with the nearest code of each element, or rounded at random."""
    own = stored[name][rows.own]
    if own.dtype == torch.float32:
        own.copy_(moment)
    elif own.dtype == torch.bfloat16:
        key = rows.key + MOMENTS.index(name)
        hashes = row_hashes(key, samples=torch.zeros_like(rows.key), rows=rows.numbers)
        own.copy_(rounded_at_random(moment.float(), random_bits(hashes, columns=rows.columns)))
    else:
        assert isinstance(settings, AdamW8bit), "no other optimizer has codes"
        scales, num_columns, block = stored[name + SCALE][rows.own], own.shape[-1], settings.block
        padded = pad(moment.abs(), (0, scales.shape[-1] * block - num_columns))
        scales.copy_(padded.view(len(padded), -1, block).amax(-1))
        divisors = _spread(torch.where(scales == 0, 1, scales), num_columns, block=block)
        _, between = _codes(name, own.device)
        own.copy_(torch.bucketize(moment / divisors, between, out_int32=True))


def _spread(scales: Tensor, num_columns: int, *, block: int) -> Tensor:
    """The scale of each column."""
    return scales.unsqueeze(-1).expand(-1, -1, block).flatten(1)[:, :num_columns]


def rounded_at_random(values: Tensor, bits: Tensor) -> Tensor:
    """float32 values as bfloat16 has them: the number towards zero, or the next one as often as it is near.

    The upper 16 of int32 random bits decide.
    """
    noise = (bits >> 16).bitwise_and_(0xFFFF)
    return noise.add_(values.view(torch.int32)).bitwise_and_(-0x10000).view(torch.float32)


def _codes(name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """float32: the values of a moment's codes, and the numbers halfway between them."""
    values = torch.tensor(codes(is_signed=name == MOMENTS[0]), device=device)
    return values, (values[:-1] + values[1:]) / 2
