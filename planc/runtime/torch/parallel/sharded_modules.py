"""Modules whose own code computes with local tensors: experts, packed layers, per-head parameters.

With torch's styles DTensor propagates the layout through each operation. These modules slice, index and chunk
their weights, or run kernels of their own, so they get plain tensors, and their outputs are declared partial
sums where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

Placements = Mapping[str, Placement]
"""The placements of a module's own parameters, by local name."""


class ShardOwnParameters(ParallelStyle):
    """Shards a module's own parameters; its code sees the local ones. Children stay as they are."""

    def __init__(self, placements: Placements) -> None:
        super().__init__()
        self.placements = placements

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute_parameters(module, self.placements, device_mesh)
        inner = module.forward

        # A wrapper rather than a hook: recomputing the module's forward needs local parameters too.
        @functools.wraps(inner)
        def forward(*arguments: Any, **keywords: Any) -> Any:
            with local_parameters(module):
                return inner(*arguments, **keywords)

        module.forward = forward
        return module


class ShardExperts(ShardOwnParameters):
    """Shards stacked experts `(hidden_states, top_k_index, top_k_weights)`, and sums their outputs.

    Each rank computes a part of every expert from whole tokens and whole routing weights, whose gradients are
    therefore partial.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        super()._apply(module, device_mesh)

        def enter(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            entered = tuple(read_by_parts(one, device_mesh) for one in arguments)
            return entered, {name: read_by_parts(one, device_mesh) for name, one in keywords.items()}

        def leave(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
            partial = DTensor.from_local(output, device_mesh, (Partial(),), run_check=False)
            return partial.redistribute(placements=(Replicate(),)).to_local()

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
        return module


class ShardPackedLinear(ShardOwnParameters):
    """Shards the columns of each of the layers that a linear layer packs; the output stays sharded."""

    def __init__(self, placements: Placements, input_layout: Placement) -> None:
        super().__init__(placements)
        self.input_layout = input_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        super()._apply(module, device_mesh)

        def enter(_: nn.Module, arguments: tuple[Any, ...]) -> Any:
            tensor, *rest = arguments
            if not isinstance(tensor, DTensor):
                tensor = DTensor.from_local(tensor, device_mesh, (self.input_layout,), run_check=False)
            whole = tensor.redistribute(placements=(Replicate(),))
            return (whole.to_local(grad_placements=(Partial(),)), *rest)

        module.register_forward_pre_hook(enter)
        return module


class SumRotaryGradient(ParallelStyle):
    """Sums the gradient of the last `width` features of an output, which every rank's heads read."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.width = width

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def leave(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
            latent, rotary = output[..., : -self.width], output[..., -self.width :]
            return torch.cat((latent, read_by_parts(rotary, device_mesh)), dim=-1)

        module.register_forward_hook(leave)
        return module


def read_by_parts(value: Any, device_mesh: DeviceMesh) -> Any:
    """The value, for ranks that each compute a part of its gradient, which is summed in backward."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    whole = DTensor.from_local(value, device_mesh, (Replicate(),), run_check=False)
    return whole.to_local(grad_placements=(Partial(),))


def distribute_parameters(module: nn.Module, placements: Placements, device_mesh: DeviceMesh) -> None:
    """Replace a module's own parameters, still on meta, by distributed ones."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        # Nothing to send: parameters on meta have no values yet.
        divided = distribute_tensor(parameter, device_mesh, (placements[name],), src_data_rank=None)
        module.register_parameter(name, nn.Parameter(divided, requires_grad=parameter.requires_grad))


@contextmanager
def local_parameters(module: nn.Module) -> Iterator[None]:
    """Inside, the module's own parameters are its local shards, as plain tensors."""
    distributed = dict(module._parameters)
    for name, parameter in distributed.items():
        if isinstance(parameter, DTensor):
            # Not an nn.Parameter, which would be a leaf: gradients flow to the distributed one.
            module._parameters[name] = parameter.to_local()
    try:
        yield
    finally:
        module._parameters.update(distributed)
