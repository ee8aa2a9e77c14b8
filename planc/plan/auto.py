"""The rules that `auto` stands for: the model's own plan, or what planc found for a model."""

from __future__ import annotations

from planc.inventory.schema import Inventory
from planc.plan import spec
from planc.record import record
from planc.styles import Boundary


@record
class AutoRule:
    """A rule that no plan has written."""

    pattern: str
    style: str
    boundary: Boundary = Boundary()


@record
class Automatic:
    """What `auto` stands for. `reason` says why there are no rules."""

    rules: tuple[AutoRule, ...] = ()
    reason: str = ""


def own_rules(inventory: Inventory) -> Automatic:
    """The tensor-parallel plan that comes with the model."""
    return Automatic(tuple(AutoRule(pattern, style) for pattern, style in inventory.tp_plan))


def is_solved(plan: spec.Plan, inventory: Inventory) -> bool:
    """Whether planc has to find the rules."""
    of = plan.tensor_parallel
    if of is None or of.auto is None or plan.mesh.tp == 1:
        return False
    is_asked = of.auto.rules is spec.AutoRules.SOLVE or of.auto.sequence_parallel
    return is_asked or not inventory.tp_plan
