"""The tensors of a plan's model that are not of the dtype that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.vocab import DType


def other_dtypes(plan: Plan, inventory: Inventory) -> Mapping[str, DType]:
    """The dtype of every parameter and buffer that is not of `model.dtype`, by name."""
    kept = dict.fromkeys(inventory.kept_in_float32(plan.model.dtype), DType.FLOAT32)
    return {**dict(inventory.own_dtypes(plan.model.dtype)), **kept}
