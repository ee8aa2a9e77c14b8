"""The times of a step on both sides' device: what is expected, and the bound."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diff.difference import Action, Change, Group
from planc.diff.side import Side
from planc.estimate.bound import StepBound, step_bound
from planc.estimate.expectation import StepExpectation, step_expectation
from planc.estimate.step_work import StepWork, step_work
from planc.figures import times
from planc.figures.figure import Figure
from planc.plan.spec import Plan
from planc.record import record


@record
class _Times:
    step: StepWork
    expected: StepExpectation | None
    bound: StepBound | None


def compare_times(old: Side, new: Side) -> Iterator[Change]:
    """The expected speed and the bound; nothing unless both plans name one device, and models are here."""
    if _device(old.plan) is None or _device(old.plan) != _device(new.plan):
        return
    before, after = _times(old), _times(new)
    if before is None or after is None:
        return
    if before.expected is not None and after.expected is not None:
        sides = (before.step, before.expected), (after.step, after.expected)
        yield _change("expected", *(times.expected_tokens_per_second(*side) for side in sides))
        yield _change("expected step", *(times.expected_step_seconds(found) for _, found in sides))
    if before.bound is not None and after.bound is not None:
        bounds = (before.step, before.bound), (after.step, after.bound)
        yield _change("at most", *(times.most_tokens_per_second(*side) for side in bounds))


def _device(plan: Plan | None) -> object:
    return (plan.hardware.gpu, plan.mesh.devices_per_node) if plan and plan.hardware else None


def _times(side: Side) -> _Times | None:
    estimated = side.estimate
    if side.inventory is None or estimated is None or side.plan is None or side.plan.hardware is None:
        return None
    step = step_work(side.graph, side.inventory, estimated)
    device, node = side.plan.hardware.gpu, side.plan.mesh.devices_per_node
    expected = step_expectation(step, device, devices_per_node=node)
    return _Times(step, expected, step_bound(step, device, devices_per_node=node))


def _change(name: str, was: Figure, now: Figure) -> Change:
    action = Action.KEEP if was.value == now.value else Action.CHANGE
    return Change(Group.TIME, action, name, was.text, now.text)
