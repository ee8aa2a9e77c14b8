"""What a rule is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from planc.checks.layout_flow import Flow, layout_flow
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Inventory
from planc.plan.bind import BoundPlan
from planc.plan.spec import Plan
from planc.vocab import MeshDim


@dataclass(frozen=True)
class Subject:
    """A plan held against its model, and the world size of the launch where it is known.

    Not slotted, since the layout flow is worked out once, when the first rule asks for it.
    """

    bound: BoundPlan
    world_size: int | None = None

    @property
    def plan(self) -> Plan:
        return self.bound.plan

    @property
    def inventory(self) -> Inventory:
        return self.bound.inventory

    @cached_property
    def flow(self) -> Flow:
        """The layouts of activations over tp."""
        return layout_flow(self.bound)


@dataclass(frozen=True, slots=True)
class Rule:
    """A check: the codes that it can give, and the function that gives them.

    `over` is a mesh dim without whose ranks the rule has nothing to say. `unless` are codes that, found in
    `block`, make this rule's findings mere consequences.
    """

    codes: tuple[Code, ...]
    check: Callable[[Subject], Iterable[Diagnostic]]
    over: MeshDim | None = None
    block: str = ""
    unless: tuple[Code, ...] = ()
