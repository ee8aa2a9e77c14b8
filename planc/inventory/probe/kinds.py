"""The kind of a module, for sharding rules. Imports torch, for the probe."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from planc.inventory.schema import Kind

Linear: TypeAlias = nn.Linear | Conv1D
"""Layers that multiply their input by a weight."""


def out_features(layer: Linear) -> int:
    features: int = layer.nf if isinstance(layer, Conv1D) else layer.out_features
    return features


def in_features(layer: Linear) -> int:
    features: int = layer.nx if isinstance(layer, Conv1D) else layer.in_features
    return features


def kind_of(module: nn.Module) -> Kind:
    """The kind, by the module's class and what it owns."""
    match module:
        case nn.Linear():
            of_module: Any = type(module)
            return Kind.LINEAR if _is_linear(of_module) else Kind.OTHER
        case Conv1D():
            return Kind.CONV1D if type(module) is Conv1D else Kind.OTHER
        case nn.Embedding():
            # Of a norm's weight inside, each rank would have the gradient of its own rows.
            has_more = any(owns_parameters(child) for child in module.children())
            return Kind.OTHER if has_more else Kind.EMBEDDING
        case nn.ModuleList():
            return Kind.MODULE_LIST
        case _ if not owns_parameters(module):
            return Kind.CONTAINER
        case _ if "RMSNorm" in type(module).__name__ or "LayerNorm" in type(module).__name__:
            return Kind.NORM
        case _:
            return Kind.OTHER


@functools.cache
def _is_linear(of_module: Any) -> bool:
    """Whether modules of a class derived from `nn.Linear` compute what it does: routers and grouped layers
    have more in their own forward."""
    if of_module.forward is nn.Linear.forward:
        return True
    with torch.device("cpu"):
        plain = nn.Linear(6, 4)
        tried = of_module.__new__(of_module)
        nn.Linear.__init__(tried, 6, 4)
        value = torch.randn(2, 3, 6)
        tried.load_state_dict(plain.state_dict())
        try:
            found = tried(value)
        except Exception:  # a model's own code may need anything that its own constructor makes
            return False
        return isinstance(found, torch.Tensor) and torch.allclose(found, plain(value))


def is_featurewise(module: nn.Embedding) -> bool:
    """Whether an embedding treats each feature of its rows alone. Some norm what they look up."""
    of_module = type(module)
    if of_module.forward is nn.Embedding.forward:
        return True
    if any(True for _ in module.children()) or len(module._parameters) > 1:
        return False
    with torch.device("cpu"):
        table, ids = torch.randn(64, 4), torch.ones(1, 3, dtype=torch.long)
        try:
            whole, half = (_tried(module, weight)(ids) for weight in (table, table[:, :2].contiguous()))
        except Exception:  # modules that take no ids may raise anything
            return False
    return torch.equal(whole[..., :2], half)


def is_renumbered(module: nn.Embedding) -> bool:
    """Whether an embedding looks up other rows than those whose numbers it takes: positions that its own
    code counts or shifts. A rank that has some of the rows would miss them."""
    of_module = type(module)
    if of_module.forward is nn.Embedding.forward or len(module._parameters) > 1:
        return False
    with torch.device("cpu"):
        table, ids = torch.randn(64, 4), torch.tensor([[3, 40, 0, 63, 20]])
        is_first = (ids < 32).unsqueeze(-1)
        try:
            whole = _tried(module, table)(ids)
            first = _tried(module, table[:32])(ids.where(ids < 32, 0))
            second = _tried(module, table[32:])((ids - 32).clamp(min=0))
        except Exception:  # modules that take no ids may raise anything
            return True
    return not torch.equal(whole, torch.where(is_first, first, second))


def _tried(module: nn.Embedding, weight: Tensor) -> nn.Module:
    """The module with another table; a scale that it has in a buffer is 1."""
    tried: nn.Module = type(module).__new__(type(module))
    vars(tried).update(vars(module))
    tried._parameters = {"weight": nn.Parameter(weight)}
    tried._buffers = {
        name: None if buffer is None else torch.ones(buffer.shape, dtype=buffer.dtype)
        for name, buffer in module._buffers.items()
    }
    vars(tried).update(num_embeddings=weight.shape[0], embedding_dim=weight.shape[1], padding_idx=None)
    return tried


def owns_parameters(module: nn.Module) -> bool:
    return any(parameter is not None for parameter in module._parameters.values())
