"""What a rule is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from planc.devices.hardware import Demand
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Inventory
from planc.layouts.flow import Flow, layout_flow
from planc.plan.bind import BoundPlan
from planc.plan.facts import facts
from planc.plan.spec import Plan
from planc.record import record
from planc.vocab import MeshDim


@dataclass(frozen=True)
class Subject:
    """A plan held against its model, and the world size of the launch where it is known.

    `estimated` gives the facts that take an estimate, `demand` what the plan asks of the device that it
    names, None where nobody wants to know. Not slotted, since these and the layout flow are worked
    out once, when the first rule asks for them.
    """

    bound: BoundPlan
    world_size: int | None = None
    estimated: Callable[[], Mapping[str, int]] = dict
    demand: Callable[[], Demand | None] = lambda: None
    base: Path | None = None
    """Where the plan's relative paths start."""
    meshes: tuple[Plan, ...] = ()
    """Of a smaller plan that an elastic one stands for: the others that the same run may be."""

    @property
    def plan(self) -> Plan:
        return self.bound.plan

    @property
    def inventory(self) -> Inventory:
        return self.bound.inventory

    @cached_property
    def facts(self) -> Mapping[str, int]:
        """Every fact that an expectation can name; an estimate is made only where the others do not do."""
        known = facts(self.plan, self.inventory)
        is_enough = all(expectation.subject in known for expectation in self.plan.expectations)
        return known if is_enough else {**known, **self.estimated()}

    @cached_property
    def flow(self) -> Flow:
        """The layouts of activations over tp."""
        return layout_flow(self.bound)


@record
class Rule:
    """A check: the codes that it can give, and the function that gives them.

    `over` is a mesh dim without whose ranks the rule has nothing to say. `unless` are codes that, found in
    `block`, or anywhere where it names none, make this rule's findings mere consequences. With `of_sound`
    the rule keeps still where another one found an error: what mends it changes what this one sees.
    """

    codes: tuple[Code, ...]
    check: Callable[[Subject], Iterable[Diagnostic]]
    over: MeshDim | None = None
    block: str = ""
    unless: tuple[Code, ...] = ()
    of_sound: bool = False
