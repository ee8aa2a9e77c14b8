"""The types of a rule and of the subject that it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


@dataclass(frozen=True, eq=False)
class Subject:
    """A plan bound to its model, with the world size of the launch if it is known.

    `estimated` returns the facts that need an estimate, and `demand` the memory that the plan needs on its
    device, None if nothing asks for it. Not slotted, since facts and the layout flow are cached when the
    first rule uses them. Equal to itself alone: what several rules ask for is kept by subject.
    """

    bound: BoundPlan
    world_size: int | None = None
    estimated: Callable[[], Mapping[str, int]] = dict
    demand: Callable[[], Demand | None] = lambda: None
    base: Path | None = None
    """The directory that the plan's relative paths start from."""
    meshes: tuple[Plan, ...] = ()
    """The other plans of an elastic run, if this is one of them."""

    @property
    def plan(self) -> Plan:
        return self.bound.plan

    @property
    def inventory(self) -> Inventory:
        return self.bound.inventory

    @cached_property
    def facts(self) -> Mapping[str, int]:
        """Every fact that an expectation can name; estimates the plan only if an expectation needs it."""
        known = facts(self.plan, self.inventory)
        is_enough = all(expectation.subject in known for expectation in self.plan.expectations)
        return known if is_enough else {**known, **self.estimated()}

    @cached_property
    def flow(self) -> Flow:
        """The layouts of activations over tp."""
        return layout_flow(self.bound)


Findings = Iterator[Diagnostic]
"""The findings of a rule, in the order of the plan."""


@record
class Rule:
    """A check: the function that finds something, and the codes that it can report. `reports` makes one.

    The rule is skipped if the mesh dim `over` has size 1. Codes of `unless`, found in `block` (anywhere if it
    is empty), make this rule's findings mere consequences. With `of_sound`, the rule is skipped if another
    one found an error, because the fix would change its input.
    """

    check: Callable[[Subject], Findings]
    codes: tuple[Code, ...]
    over: MeshDim | None = None
    block: str = ""
    unless: tuple[Code, ...] = ()
    of_sound: bool = False


def reports(
    *codes: Code,
    over: MeshDim | None = None,
    block: str = "",
    unless: tuple[Code, ...] = (),
    of_sound: bool = False,
) -> Callable[[Callable[[Subject], Findings]], Rule]:
    """Makes the function below it a `Rule`, as whose `check` it is registered."""
    return lambda check: Rule(check, codes, over, block, unless, of_sound)
