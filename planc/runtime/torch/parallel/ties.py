"""Tied parameters, which several steps of the setup would silently untie."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor

from planc.runtime.errors import RunError

Ties = tuple[tuple[str, ...], ...]


def tied_parameters(model: nn.Module) -> Ties:
    """Groups of parameter names that share one tensor, the owner first."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def tie(model: nn.Module, ties: Ties) -> None:
    """Make every group share one parameter again: a distributed one if there is one, else the owner's.

    RunError if modules of a group distribute it differently.
    """
    for names in ties:
        parameters = [model.get_parameter(name) for name in names]
        distributed = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
        if any(one.placements != distributed[0].placements for one in distributed):
            raise RunError(
                f"{' and '.join(names)} are one parameter, and this graph shards them differently",
                help="compile the plan again with this version of planc",
            )
        shared = distributed[0] if distributed else parameters[0]
        for name in names:
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, shared)
