"""Tensor-parallel rules for a model that brings none: found by search, judged by planc's own checks."""

from planc.inventory.schema import Inventory
from planc.plan.auto import Automatic, own_rules
from planc.plan.bind import is_solved
from planc.plan.spec import Plan


def automatic(plan: Plan, inventory: Inventory) -> Automatic:
    """The rules that the plan's `auto` means."""
    if not is_solved(plan, inventory):
        return own_rules(inventory)
    # Most plans ask for none, and a check should not wait for the import.
    from planc.solve.solve import auto_rules

    return auto_rules(plan, inventory)
