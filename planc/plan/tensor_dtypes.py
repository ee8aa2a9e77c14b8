"""The tensors of a plan's model that are not of the dtype that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.adapters import adapted_layer
from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.vocab import DType


def other_dtypes(plan: Plan, inventory: Inventory) -> Mapping[str, DType]:
    """The dtype of every parameter and buffer that is not of `model.dtype`, by name; also of adapters."""
    kept = dict.fromkeys(inventory.kept_in_float32(plan.model.dtype), DType.FLOAT32)
    adapters = dict.fromkeys(adapters_apart(plan, inventory), adapters_dtype(plan))
    return {**dict(inventory.own_dtypes(plan.model.dtype)), **kept, **adapters}


def adapters_dtype(plan: Plan) -> DType:
    """The dtype in which adapters are stored, if there are any."""
    return (plan.adapter.dtype if plan.adapter is not None else None) or plan.model.dtype


def adapters_apart(plan: Plan, inventory: Inventory) -> frozenset[str]:
    """The parameters of adapters, where they are not of the model's dtype."""
    if adapters_dtype(plan) is plan.model.dtype:
        return frozenset()
    return frozenset(fqn for fqn, _, _ in inventory.parameters() if adapted_layer(fqn) is not None)
