"""The memory that a plan needs, compared with its device."""

from __future__ import annotations

from planc.capacity.draft import Draft
from planc.capacity.near_plans import Neighbour, neighbours
from planc.devices.hardware import FITS, Change, Demand, Device
from planc.plan.bind import BoundPlan

MAX_CHANGES = 4
"""The number of similar plans that a finding names."""


def demand(draft: Draft) -> Demand | None:
    """The memory that the plan needs on its device; None without a device. The plan may break rules."""
    bound = draft.bound
    hardware = bound.plan.hardware
    if hardware is None:
        return None
    memory = draft.estimate.memory
    peak = memory.peak.num_bytes
    limit = FITS * hardware.gpu.memory_bytes
    changes = () if peak <= limit else _changes(bound, hardware.gpu)
    return Demand(hardware.gpu, peak, memory.peak_phase, memory.peak_parts, changes)


def _changes(bound: BoundPlan, device: Device) -> tuple[Change, ...]:
    """The similar plans that fit, with the smallest change of each kind; pairs if no single change fits."""
    limit = FITS * device.memory_bytes
    found: list[Change] = []
    for num_changes in (1, 2):
        for group in neighbours(bound, num_changes=num_changes):
            change = _first_that_fits(group, limit)
            found.extend([change] if change else [])
            if len(found) == MAX_CHANGES:
                return tuple(found)
        if found:
            break
    return tuple(found)


def _first_that_fits(group: tuple[Neighbour, ...], limit: float) -> Change | None:
    """The first of plans with growing changes that fits; None right away if the largest does not."""
    if _peak_bytes(group[-1].bound) > limit:
        return None
    for near in group:
        peak = _peak_bytes(near.bound)
        if peak <= limit and near.is_sound:
            return Change(near.texts, peak)
    return None


def _peak_bytes(bound: BoundPlan) -> int:
    return Draft(bound).estimate.memory.peak.num_bytes
