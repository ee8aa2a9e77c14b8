"""The resources of a plan: memory, communication and times of a step, as in `planc estimate`."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diff.difference import Action, Change, Finding, Group
from planc.diff.side import Side
from planc.estimate.bound import StepBound, step_bound
from planc.estimate.expectation import StepExpectation, step_expectation
from planc.estimate.result import Estimate
from planc.estimate.step_work import StepWork, step_work
from planc.figures import needs, times
from planc.figures.figure import Figure
from planc.plan.spec import Plan
from planc.record import record
from planc.vocab import GroupDim, MeshDim

PEAK = "peak"
PHASE = "peak phase"
TOTAL = "total sent"
UNKNOWN = "not compared: a model is not here"
_CROSSES_NODES = "P304"


def compare_resources(old: Side, new: Side) -> Iterator[Change]:
    """Memory and communication, or that they are unknown because a model is not here."""
    before, after = old.estimate, new.estimate
    if before is None or after is None:
        yield Change(Group.MEMORY, Action.KEEP, PEAK, note=UNKNOWN)
        return
    yield from _memory(before, after, new)
    yield from _communication(before, after, new)


def _memory(before: Estimate, after: Estimate, new: Side) -> Iterator[Change]:
    """The peak, its phase, and its parts, which add up to it on both sides; then other parts."""
    sides = before, after
    missing = "; ".join(f"{name} is not modeled" for name in after.not_modeled or before.not_modeled)
    # An unmodeled part that is added or removed changes the peak by an unknown amount.
    note = missing if before.not_modeled != after.not_modeled else ""
    peaks = [needs.peak_memory(side) for side in sides]
    yield _bytes_change(
        Group.MEMORY, PEAK, *peaks, note=note, findings=new.broken("peak_memory"), remark=missing
    )
    was, now = (needs.peak_phase(side).text for side in sides)
    yield Change(Group.MEMORY, Action.KEEP if was == now else Action.CHANGE, PHASE, was, now)
    kernels = [", ".join(dict.fromkeys(use.name for use in side.attention)) for side in sides]
    if any(kernels):
        action = Action.of(*(text or None for text in kernels)) if len({*kernels}) > 1 else Action.KEEP
        yield Change(Group.MEMORY, action, "attention", kernels[0] or None, kernels[1] or None)
    for name in dict(after.memory.peak_parts) | dict(before.memory.peak_parts):
        parts = [needs.peak_part(side, name) for side in sides]
        findings = new.broken("parameters_per_rank") if name == "parameters" else ()
        yield _bytes_change(Group.MEMORY, name, *parts, findings=findings)
    yield from _outside_the_peak(before, after)


def _outside_the_peak(before: Estimate, after: Estimate) -> Iterator[Change]:
    """Parts outside of both peaks: at other times, or in host memory."""
    at_peak = {name for side in (before, after) for name, _ in side.memory.peak_parts}
    for name in (part.name for part in after.memory.parts if part.name not in at_peak):
        sizes = [needs.own_most(side, name) for side in (before, after)]
        yield _bytes_change(Group.MEMORY, f"{name}, not at the peak", *sizes)


def _communication(before: Estimate, after: Estimate, new: Side) -> Iterator[Change]:
    """The bytes that a rank sends over each mesh dim, with the number of collectives if it differs."""
    for over in dict.fromkeys(one.over for one in (*before.collectives, *after.collectives)):
        yield _bytes_change(
            Group.COMMUNICATION,
            f"{', '.join(over)} collectives",
            *(needs.sent_by(side.collectives, over=over) for side in (before, after)),
            note=_counts(before, after, over),
            findings=_findings(new, over),
        )
    total = needs.sent_bytes(before), needs.sent_bytes(after)
    yield _bytes_change(Group.COMMUNICATION, TOTAL, *total, findings=new.broken("sent_bytes_per_step"))


def _findings(new: Side, over: tuple[GroupDim, ...]) -> tuple[Finding, ...]:
    if over == (MeshDim.TP,):
        return (*new.broken("tp_bytes_per_step"), *new.found(_CROSSES_NODES))
    return new.broken("cp_bytes_per_step") if over == (MeshDim.CP,) else new.broken("fsdp_bytes_per_step")


def _counts(before: Estimate, after: Estimate, over: tuple[GroupDim, ...]) -> str:
    """`all_gather 36 -> 72`, for the kinds whose number differs."""
    collectives = (*before.collectives, *after.collectives)
    texts = []
    for kind in dict.fromkeys(collective.kind for collective in collectives if collective.over == over):
        was, now = (needs.collectives_by(side.collectives, over=over, kind=kind) for side in (before, after))
        if was != now:
            texts.append(f"{kind} {was.number} -> {now.number}")
    return ", ".join(texts)


def _bytes_change(
    group: Group,
    name: str,
    was: Figure,
    now: Figure,
    *,
    note: str = "",
    findings: tuple[Finding, ...] = (),
    remark: str = "",
) -> Change:
    """A size that was added, removed, changed or kept; exact if rounding would hide the change.

    A `note` is itself a change, a `remark` is not.
    """
    texts = was.text, now.text
    if was.value != now.value and texts[0] == texts[1]:
        texts = was.exact, now.exact
    if was.value == now.value:
        action = Action.CHANGE if note else Action.KEEP
    else:
        action = Action.ADD if was.value == 0 else Action.REMOVE if now.value == 0 else Action.CHANGE
    old, new = (None if action is Action.ADD else texts[0]), (None if action is Action.REMOVE else texts[1])
    noted = note or remark
    return Change(group, action, name, old, new, noted, findings=() if action is Action.KEEP else findings)


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
