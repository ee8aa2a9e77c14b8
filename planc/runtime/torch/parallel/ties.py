"""Tied parameters, which several steps of the setup would silently untie."""

from __future__ import annotations

from torch import nn

Ties = tuple[tuple[str, ...], ...]


def tied_parameters(model: nn.Module) -> Ties:
    """Groups of parameter names that share one tensor, the owner first."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def tie(model: nn.Module, ties: Ties) -> None:
    """Make every group share its owner's parameter again."""
    for owner, *aliases in ties:
        parameter = model.get_parameter(owner)
        for alias in aliases:
            module, _, name = alias.rpartition(".")
            setattr(model.get_submodule(module), name, parameter)
