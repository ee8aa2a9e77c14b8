"""The parameters that patterns name, and those that are not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.inventory.schema import Inventory
from planc.plan.actions import Frozen, Trained
from planc.plan.spec import PatternRule, Plan
from planc.source import Span
from planc.vocab import outwards


def frozen_parameters(
    plan: Plan, inventory: Inventory, ruled: Mapping[str, PatternRule[Frozen | Trained]]
) -> Mapping[str, Span]:
    """The frozen parameters in the model's order. What the model's own code freezes stays so."""
    spans: dict[str, Span] = {}
    for fqn, module, parameter in inventory.parameters():
        if parameter.name in module.frozen:
            spans[fqn] = plan.span("model.hf")
        elif fqn in ruled and isinstance(ruled[fqn].action, Frozen):
            spans[fqn] = ruled[fqn].span
    return spans


def own_parameters(inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """The parameters that a group's pattern matches: by name, or by the module that owns them."""
    owned: dict[str, list[str]] = {}
    for fqn, module, _ in inventory.parameters():
        for name in (fqn, module.fqn):
            owned.setdefault(name, []).append(fqn)
    return owned


def parameters_inside(inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """The parameters that a pattern of `freeze` matches: by name, or by a module around them."""
    inside: dict[str, list[str]] = {}
    for fqn, _, _ in inventory.parameters():
        for name in outwards(fqn):
            inside.setdefault(name, []).append(fqn)
    return inside
