"""Size limits beyond every real model."""

from __future__ import annotations

from planc.inventory.files import InventoryError
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
