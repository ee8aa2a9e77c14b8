"""Which tensors of a plan's model are not of the dtype that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Inventory
from planc.plan.spec import Plan, Weights
from planc.vocab import DType


def kept_in_float32(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Parameters and buffers that loading keeps in float32; random weights are of the dtypes of the code."""
    return inventory.kept_in_float32(plan.model.dtype) if plan.model.weights is Weights.PRETRAINED else ()


def other_dtypes(plan: Plan, inventory: Inventory) -> Mapping[str, DType]:
    """The dtype of every parameter and buffer that is not of `model.dtype`, by name."""
    kept = dict.fromkeys(kept_in_float32(plan, inventory), DType.FLOAT32)
    return {**dict(inventory.own_dtypes(plan.model.dtype)), **kept}
