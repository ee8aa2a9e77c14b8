"""The kind of a module, for sharding rules. Imports torch, for the probe."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from planc.inventory.schema import Kind


def kind_of(module: nn.Module) -> Kind:
    """The kind, by the module's class and what it owns."""
    match module:
        case nn.Linear():
            of_module: Any = type(module)
            return Kind.LINEAR if _is_linear(of_module) else Kind.OTHER
        case nn.Embedding():
            return Kind.EMBEDDING
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


def owns_parameters(module: nn.Module) -> bool:
    return any(parameter is not None for parameter in module._parameters.values())
