"""Tensor-parallel rules for a model that brings none: found by search, judged by planc's own checks."""

from planc.inventory.schema import Inventory
from planc.plan.auto import Automatic, AutoRules, own_rules
from planc.plan.spec import Plan


def automatic(plan: Plan, inventory: Inventory) -> Automatic:
    """The rules that the plan's `auto` means."""
    if not is_solved(plan, inventory):
        return own_rules(inventory)
    # Most plans ask for none, and a check should not wait for the import.
    from planc.solve.solve import auto_rules

    return auto_rules(plan, inventory)


def is_solved(plan: Plan, inventory: Inventory) -> bool:
    """Whether planc has to find the rules that the plan's `auto` means."""
    of = plan.tensor_parallel
    if of is None or of.auto is None or plan.mesh.tp == 1:
        return False
    is_asked = of.auto.rules is AutoRules.SOLVE or of.auto.sequence_parallel
    return is_asked or not inventory.tp_plan
