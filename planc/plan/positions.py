"""The positions that a plan's model reaches, and the scaling of its rotary embeddings for that."""

from __future__ import annotations

from planc.inventory.schema import Inventory, Rope
from planc.plan.keys import keys
from planc.plan.rope import ROPES, DynamicRope, LinearRope, Llama3Rope, RopeScaling, YarnRope
from planc.plan.spec import Plan


def rope_of(plan: Plan, inventory: Inventory) -> Rope | None:
    """The rotary embeddings that a plan trains: as it states them, or config.json's."""
    stated, own = plan.model.rope, inventory.rope
    if stated is None or own is None:
        return own
    return Rope(_name(stated), stated.factor, _original(stated, inventory))


def reached_positions(plan: Plan, inventory: Inventory) -> int | None:
    """The positions that the model reaches; None without a limit."""
    positions, rope = inventory.max_positions, rope_of(plan, inventory)
    return positions if positions is None or rope is None else rope.reach(positions)


def grows(plan: Plan, inventory: Inventory) -> bool:
    """Whether rotary embeddings depend on the length of sequences, beyond the config's positions."""
    rope, positions = rope_of(plan, inventory), inventory.max_positions
    if rope is None or positions is None or rope.kind != "dynamic":
        return False
    return plan.data.sequence_length > positions


def rope_parameters(plan: Plan, inventory: Inventory) -> tuple[tuple[str, str | int | float], ...]:
    """Return the plan's rotary parameters, by transformers' names; none if it leaves config.json's."""
    stated = plan.model.rope
    if stated is None:
        return ()
    values = {name: getattr(stated, name) for name in (key.name for key in keys(type(stated)))}
    if "original_max_position_embeddings" in values:
        values["original_max_position_embeddings"] = _original(stated, inventory)
    return (("rope_type", _name(stated)), *((name, one) for name, one in values.items() if one is not None))


def _name(stated: RopeScaling) -> str:
    return next(name for name, kind in ROPES.items() if type(stated) is kind)


def _original(stated: RopeScaling, inventory: Inventory) -> int | None:
    match stated:
        case YarnRope() | Llama3Rope():
            own = inventory.rope.original if inventory.rope is not None else None
            return stated.original_max_position_embeddings or own or inventory.max_positions
        case LinearRope() | DynamicRope():
            return None
