"""Weights of which none is constant: zeros, ones and equal rows, as models begin, would hide wrong factors.

A bias of zeros may be added on every rank, and a gate of zeros may let nothing through, without a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from planc.inventory.adapters import adapted_layer
from planc.modeling.draws import Normal, fill
from planc.modeling.initialization import derived_seed
from planc.runtime.torch.parallel.blocks import Slices
from planc.runtime.torch.parallel.packing import Packing, packed_parameters
from planc.runtime.torch.weights.weights import copy_block

NOISE = Normal(0.0, 0.02)


def perturb(
    model: nn.Module, *, seed: int, within: Collection[str] | None = None, apart: Collection[str] = ()
) -> None:
    """Add noise to the parameters and saved buffers of an initialized model, plain or distributed.

    `within` names layers of which only the adapters' weights are meant, `apart` tensors that stay as they
    are.
    """
    packings = packed_parameters(model)
    for name, tensor in saved_tensors(model).items():
        if name in apart or (within is not None and adapted_layer(name) not in within):
            continue
        perturb_tensor(name, tensor, seed=seed, packing=packings.get(tensor))


def perturb_tensor(name: str, tensor: Tensor, *, seed: int, packing: Packing | None = None) -> None:
    """Add noise to one tensor: of its name and each element's place, the same on every mesh."""
    add = partial(_add, shape=tuple(tensor.shape), key=derived_seed(seed, "perturb", name))
    copy_block(tensor, add, packing=packing)


def _add(out: Tensor, block: Slices, *, shape: tuple[int, ...], key: int) -> None:
    drawn = torch.empty(out.shape, dtype=out.dtype)
    fill(drawn, block, shape=shape, key=key, of=NOISE)
    # Of a gate at -10, a narrow dtype would round away what is small.
    out.add_(drawn.to(out.device) * out.abs().clamp(min=1))


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The floating-point parameters and buffers that checkpoints hold, tied ones once.

    A buffer that they do not hold is a function of the configuration, which a model computes as it is built.
    """
    saved = model.state_dict().keys()
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: one for name, one in named.items() if name in saved and one.is_floating_point()}


def constants(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The tensors that are the same along a dimension; of scalars, those that are 0 or 1."""
    return (name for name, tensor in tensors.items() if _is_constant(tensor.detach()))


def _is_constant(tensor: Tensor) -> bool:
    if tensor.numel() <= 1:
        return bool(tensor.numel()) and tensor.item() in (0.0, 1.0)
    wide = (dim for dim, size in enumerate(tensor.shape) if size > 1)
    return any(bool((tensor == tensor.narrow(dim, 0, 1)).all()) for dim in wide)
