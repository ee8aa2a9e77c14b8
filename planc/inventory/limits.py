"""Refusals of models: sizes beyond every real one, and configs that require remote code."""

from __future__ import annotations

from pathlib import Path

from planc.hub.remote_code import code_asked_for
from planc.inventory.files import InventoryError, parse_json
from planc.inventory.schema import Inventory

MAX_ELEMENTS = 2**42
"""The most elements of a tensor. The largest of published models have some 2**34."""


def require_possible(inventory: Inventory, *, origin: str) -> Inventory:
    """The inventory; InventoryError, which names `origin`, for a tensor that exceeds the limit."""
    for module in inventory.modules:
        for parameter in module.parameters:
            if parameter.num_elements > MAX_ELEMENTS:
                raise InventoryError(
                    f"{origin}: {module.fqn}.{parameter.name} would be {list(parameter.shape)}, "
                    "larger than a tensor of any model",
                    help="correct the sizes in config.json",
                )
    return inventory


def refuse_remote_code(content: bytes, *, path: Path) -> None:
    """InventoryError if the config.json with this content, at `path`, requires remote code."""
    raw = parse_json(content, name=str(path))
    if isinstance(raw, dict) and (key := code_asked_for(raw)) is not None:
        raise InventoryError(
            f'{path} requires remote code ("{key}")',
            help=f"planc runs no remote code: use a model that transformers implements, and remove {key}",
        )
