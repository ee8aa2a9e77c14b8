"""Dtypes of a plan's tensors: those of FSDP units, and those that are not what the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.adapters import adapted_layer
from planc.inventory.schema import Inventory
from planc.plan.bind import BoundPlan
from planc.plan.spec import Plan
from planc.vocab import DType, outwards


def other_dtypes(plan: Plan, inventory: Inventory) -> Mapping[str, DType]:
    """The dtype of every parameter and buffer that is not of `model.dtype`, by name; also of adapters."""
    kept = dict.fromkeys(inventory.kept_in_float32(plan.model.dtype), DType.FLOAT32)
    adapters = dict.fromkeys(_adapters_apart(plan, inventory), adapters_dtype(plan))
    return {**dict(inventory.own_dtypes(plan.model.dtype)), **kept, **adapters}


def adapters_dtype(plan: Plan) -> DType:
    """The dtype in which adapters are stored, if there are any."""
    return (plan.adapter.dtype if plan.adapter is not None else None) or plan.model.dtype


def _adapters_apart(plan: Plan, inventory: Inventory) -> frozenset[str]:
    """The parameters of adapters, where they are not of the model's dtype."""
    if adapters_dtype(plan) is plan.model.dtype:
        return frozenset()
    return frozenset(fqn for fqn, _, _ in inventory.parameters() if adapted_layer(fqn) is not None)


Fqns = tuple[str, ...]

_IN_HALF = (DType.BFLOAT16, DType.FLOAT16)


def parameters_by_unit(bound: BoundPlan) -> Mapping[Fqns, Fqns]:
    """The parameters of each unit, by its modules; the root's, which no unit takes, by `("",)`."""
    owner = {fqn: group.fqns for group in bound.units for fqn in group.fqns}
    found: dict[Fqns, list[str]] = {}
    for parameter, module, _ in bound.inventory.parameters():
        unit = next((owner[name] for name in outwards(module.fqn) if name in owner), ("",))
        found.setdefault(unit, []).append(parameter)
    return {unit: tuple(parameters) for unit, parameters in found.items()}


def kept_from(bound: BoundPlan, param_dtype: DType) -> frozenset[str]:
    """Parameters that transformers keeps in float32 in a model of `param_dtype`, and so computes with."""
    if param_dtype not in _IN_HALF:
        return frozenset()
    inventory = bound.inventory
    own = (name for name, dtype in inventory.own_dtypes(param_dtype) if dtype is DType.FLOAT32)
    return frozenset((*own, *inventory.kept_in_float32(param_dtype)))


def compute_dtypes(bound: BoundPlan) -> Mapping[Fqns, DType | None]:
    """Return the dtype that each unit casts its parameters to, None if they stay as they are stored.

    They stay if they have that dtype already, because FSDP would then only cast inputs that the model keeps
    wider on purpose; and if transformers keeps all of them in float32. Adapters can have another.
    """
    assert bound.plan.fsdp is not None, "only `fsdp` makes units"
    plan, wanted = bound.plan, bound.plan.fsdp.param_dtype
    units = (*(group.fqns for group in bound.units), ("",))
    held = parameters_by_unit(bound)
    if wanted is None or wanted is plan.model.dtype:
        cast = _adapters_apart(plan, bound.inventory)
        return {unit: None if cast.isdisjoint(held.get(unit, ())) else wanted for unit in units}
    kept = kept_from(bound, wanted)
    return {unit: None if unit in held and kept.issuperset(held[unit]) else wanted for unit in units}
