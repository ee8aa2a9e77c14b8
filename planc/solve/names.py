"""Patterns for the members of a family that a style fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.inventory.schema import Inventory, Module
from planc.layouts.families import exact_families, family
from planc.styles import Style

Members = Mapping[str, Sequence[Module]]
"""The modules of each family."""


def members_of(inventory: Inventory) -> Members:
    """All modules by their families."""
    found: dict[str, list[Module]] = {}
    for module in inventory.modules:
        found.setdefault(family(inventory, module.fqn), []).append(module)
    return found


def patterns_for(name: str, members: Members, style: Style, inventory: Inventory) -> Sequence[str]:
    """The name of a family or of one module, or patterns for the members with parameters: a norm can be an
    identity in some layers."""
    if name not in members:
        return (name,)
    fitting = [one.fqn for one in members[name] if style.prepares or one.parameters]
    return (name,) if len(fitting) == len(members[name]) else exact_families(inventory, fitting)
