"""Which FSDP unit gathers a module."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.bind import UnitGroup


def group_by_module(units: tuple[UnitGroup, ...]) -> Mapping[str, UnitGroup]:
    """The unit of each module that a rule names."""
    return {fqn: group for group in units for fqn in group.fqns}


def owner(groups: Mapping[str, UnitGroup], fqn: str) -> UnitGroup | None:
    """The innermost unit that holds a module; None for the root's."""
    parts = fqn.split(".")
    candidates = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((groups[name] for name in candidates if name in groups), None)
