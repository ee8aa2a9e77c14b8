"""Modules that tensor parallelism shards: parameters are DTensors, their code computes with local tensors.

Initialization, checkpoints and clipping see distributed parameters. A module's forward sees this rank's parts
as plain tensors: no operation is dispatched by layout, and every collective is one that the graph states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from transformers.pytorch_utils import Conv1D

from planc.modeling.head_counts import Parts, own_rows, with_rows
from planc.runtime.torch.parallel.transfers import ranks_of
from planc.vocab import is_of_experts_adapter

Placements = Mapping[str, Placement]
"""The placements of a module's own parameters, by local name."""


def distribute_parameters(module: nn.Module, placements: Placements, device_mesh: DeviceMesh) -> None:
    """Replace a module's own parameters, still on meta, by distributed ones."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        # Nothing to send: parameters on meta have no values yet.
        divided = distribute_tensor(parameter, device_mesh, (placements[name],), src_data_rank=None)
        module.register_parameter(name, nn.Parameter(divided, requires_grad=parameter.requires_grad))


def compute_locally(
    module: nn.Module, mesh: DeviceMesh, *, sums_whole: bool, parts: Parts | None = None
) -> None:
    """Let the module's own code see its local parameters. Children stay as they are.

    With `sums_whole` ranks compute with replicated parameters on different tokens or heads, so their
    gradients are partial sums. With `parts` a rank computes its own rows of replicated parameters.
    """
    rows = _rows(module, mesh) if isinstance(module, nn.Embedding) else None
    if rows is not None:
        module.padding_idx = rows.padding  # type: ignore[assignment]
    gradient = (Partial() if sums_whole else Replicate(),)
    adds_bias_on = mesh.get_local_rank() if _adds_bias_once(module) else None
    if isinstance(module, Conv1D) and _is_sharded_by(module, tensor_dim=1):
        # Its code gives its output the shape of `nf` features.
        module.nf //= mesh.size()
    own = None
    if parts is not None:
        own = _own_features(module, parts, mesh)
    vars(module)[_SHARE] = _Share(gradient, adds_bias_on, rows, own)
    of_module: Any = type(module)
    module.__class__ = _with_local_parameters(of_module, tuple(module._parameters))


def computes_locally(module: nn.Module) -> bool:
    """Whether a module's own code sees its local parameters."""
    return _SHARE in vars(module)


def local_parameter(module: nn.Module, name: str) -> Tensor | None:
    """A parameter as the module's own code sees it."""
    with _computing(module) if computes_locally(module) else nullcontext():
        parameter: Tensor | None = getattr(module, name)
    return parameter


def leave_untraced(module: nn.Module) -> None:
    """Let compiled code around a module end before its forward, and begin again behind it."""
    vars(module)[_UNTRACED] = True
    module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]


_SHARE, _COMPUTES, _UNTRACED = "_planc_share", "_planc_computes", "_planc_untraced"
_PLACED = "_planc_placed"


@dataclass(frozen=True, slots=True)
class _Share:
    """The computation of a rank's part of a module."""

    gradient: tuple[Placement]
    """Places the gradients of replicated parameters."""
    adds_bias_on: int | None
    """This rank, if one rank alone adds the bias."""
    rows: _Rows | None
    own_features: _OwnFeatures | None

    def of(self, name: str, parameter: Tensor | None) -> Tensor | None:
        """This rank's part of a parameter, as a plain tensor."""
        if parameter is None:
            return None
        # A plain one would be summed, or have its gradient summed, as if it were on one rank.
        assert isinstance(parameter, DTensor), f"{name} is distributed, whatever it is tied to"
        gradient: tuple[Placement, ...] | None = None
        if parameter.placements == (Replicate(),):
            gradient = self.gradient
        if is_of_experts_adapter(name):
            # Each rank computes with other inner features: what it has whole of an adapter lacks their sum.
            gradient = tuple(Partial() if held == Replicate() else held for held in parameter.placements)
        # Not an nn.Parameter, which would be a leaf: gradients flow to the distributed one.
        local: Tensor = parameter.to_local(grad_placements=gradient)
        if self.own_features is not None:
            return self.own_features.of(name, local)
        if name == "bias" and self.adds_bias_on is not None:
            added: Tensor = _OnFirstRank.apply(local, self.adds_bias_on)  # type: ignore[no-untyped-call]
            return added
        return local


@dataclass(frozen=True, slots=True)
class _OwnFeatures:
    """The output features that this rank computes with replicated parameters."""

    rows: tuple[tuple[int, int], ...]
    is_transposed: bool

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """The rows of a parameter for these features."""
        return with_rows(parameter, self.rows, dim=1 if self.is_transposed and name == "weight" else 0)


def _own_features(module: nn.Module, parts: Parts, mesh: DeviceMesh) -> _OwnFeatures:
    rows = own_rows(parts, rank=mesh.get_local_rank(), num_ranks=mesh.size())
    if isinstance(module, Conv1D):
        # Its code gives its output the shape of `nf` features.
        module.nf = sum(length for _, length in rows)
    return _OwnFeatures(rows, isinstance(module, Conv1D))


@functools.cache
def _with_local_parameters(of_module: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """A module's class that sees local parameters inside its forward.

    Other code sees the distributed ones: it would not know that the rest is missing. Modules of one kind
    share a class, so torch.compile takes one graph for all layers. It traces properties, but no code that
    puts other parameters in their place where forward is recomputed.
    """

    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        share: _Share = vars(self)[_SHARE]
        with _computing(self):
            if share.rows is None:
                return of_module.forward(self, *arguments, **keywords)
            return share.rows.look_up(self, functools.partial(of_module.forward, self), *arguments)

    of_parameters = {name: _local_parameter(name) for name in names}
    own = {"forward": functools.wraps(of_module.forward)(forward), _COMPUTES: False, **of_parameters}
    of_class = {"__module__": of_module.__module__, "__qualname__": of_module.__qualname__}
    made: type[nn.Module] = type(of_module.__name__, (of_module,), of_class | own)
    return made


def _local_parameter(name: str) -> property:
    def read(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        share: _Share = vars(module)[_SHARE]
        return share.of(name, parameter) if getattr(module, _COMPUTES) else parameter

    return property(read)


@contextmanager
def _computing(module: nn.Module) -> Iterator[None]:
    if torch.compiler.is_compiling() or _PLACED in vars(module):
        # `local_parameters` has put the parts in place, also for what compiled code leaves out.
        yield
        return
    vars(module)[_COMPUTES] = True
    try:
        yield
    finally:
        vars(module)[_COMPUTES] = False


@contextmanager
def local_parameters(inside: nn.Module) -> Iterator[None]:
    """Local parameters are in the place of distributed ones, in all modules inside: for compiled code.

    Of a DTensor the compiler saves the mesh for backward, which a recomputed region mistakes for a tensor
    (PyTorch 2.13).
    """
    sharded = [one for one in inside.modules() if computes_locally(one) and _UNTRACED not in vars(one)]
    distributed = [dict(module._parameters) for module in sharded]
    for module in sharded:
        share: _Share = vars(module)[_SHARE]
        module._parameters.update({name: share.of(name, one) for name, one in module._parameters.items()})  # type: ignore[misc]
        vars(module)[_PLACED] = True
    try:
        yield
    finally:
        for module, parameters in zip(sharded, distributed, strict=True):
            module._parameters.update(parameters)
            del vars(module)[_PLACED]


class _OnFirstRank(torch.autograd.Function):
    """A bias that is added to one rank's summand alone, with the gradient that every rank computes."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, rank: int) -> Tensor:
        return bias.view_as(bias) if rank == 0 else torch.zeros_like(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _adds_bias_once(module: nn.Module) -> bool:
    """Whether a replicated bias joins summands of a weight that ranks share by its input features."""
    if not isinstance(module._parameters.get("bias"), DTensor):
        return False
    if isinstance(module, Conv1D):
        return _is_sharded_by(module, tensor_dim=0)
    return isinstance(module, nn.Linear) and _is_sharded_by(module, tensor_dim=1)


def _is_sharded_by(module: nn.Module, *, tensor_dim: int) -> bool:
    """Whether ranks share a dimension of a module's weight."""
    weight = module._parameters.get("weight")
    return isinstance(weight, DTensor) and weight.placements == (Shard(tensor_dim),)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A rank's rows of an embedding's table."""

    first: int
    size: int
    width: int
    padding: int | None
    """The row of the padding token, if it is one of these."""

    def look_up(self, module: nn.Module, inner: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """The rows of ids; zeros for ids of other ranks."""
        if not self.size:
            # A zero of each feature, with a gradient of no rows.
            weight: Any = module.weight
            return weight.sum().expand(*ids.shape, self.width)  # type: ignore[no-any-return]
        local = ids - self.first
        absent = (local < 0) | (local >= self.size)
        found = inner(local.masked_fill(absent, 0))
        return found.masked_fill(absent.unsqueeze(-1), 0.0)


def _rows(module: nn.Embedding, mesh: DeviceMesh) -> _Rows | None:
    weight = module.weight
    if not isinstance(weight, DTensor) or weight.placements != (Shard(0),):
        return None
    num_rows, width = weight.shape
    ranks = ranks_of(mesh.get_group())
    first, size = ranks.start(num_rows), ranks.own(num_rows)
    padding = module.padding_idx
    is_own = padding is not None and first <= padding < first + size
    return _Rows(first, size, width, padding - first if is_own and padding is not None else None)
