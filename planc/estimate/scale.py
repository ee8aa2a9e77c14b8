"""The calibration of a machine from a measured run: how much faster it is than expected."""

from __future__ import annotations

from dataclasses import replace

from planc.devices.hardware import Device
from planc.estimate.bound import step_bound
from planc.estimate.calibration import (
    FASTEST_LAUNCH,
    LARGEST_SCALE,
    SLOWEST_LAUNCH,
    SMALLEST_SCALE,
    Calibration,
)
from planc.estimate.expectation import StepExpectation, step_expectation
from planc.estimate.step_work import StepWork

_HALVINGS = 60
_SLOW_DEVICE = 0.6
"""The least share of what is expected of a device that any has reached."""


def calibrate(
    step: StepWork,
    device: Device,
    *,
    seconds: float,
    machine: str,
    date: str,
    devices_per_node: int | None = None,
) -> Calibration:
    """The scale with which a step, for which there is an expectation, is expected to take `seconds`.

    It is the scale of compute, or of communication if that takes more time. The other stays unmeasured: a run
    that computes all the time does not show how fast it could send. Of a run that takes far longer than its
    device needs, and whose kernels explain it, it is the time of a launch instead. Raises ValueError for a
    run that was faster than the device allows, or slower than any scale explains.
    """
    unit = Calibration(machine, device.name, date, compute_scale=None, communication_scale=None)
    plain = step_expectation(step, device, devices_per_node=devices_per_node)
    least = step_bound(step, device, devices_per_node=devices_per_node)
    assert plain is not None and least is not None, "there is an expectation"
    if seconds < least.step_seconds:
        raise ValueError(
            f"a step of {seconds:.4g} s is faster than {device.name} allows, {least.step_seconds:.4g} s: "
            "check that the run had this device and this plan"
        )
    launch = (seconds - plain.step_seconds + plain.compute_seconds) / max(1, step.kernels)
    device_seconds = plain.compute_seconds - plain.host_seconds
    if FASTEST_LAUNCH <= launch <= SLOWEST_LAUNCH and launch * step.kernels > device_seconds / _SLOW_DEVICE:
        return replace(unit, launch_seconds=launch)
    sending = plain.exposed_seconds + plain.hidden_seconds + plain.replicas_seconds
    computes = plain.compute_seconds >= sending

    def with_scale(scale: float) -> tuple[Calibration, float]:
        scaled = replace(unit, compute_scale=scale) if computes else replace(unit, communication_scale=scale)
        found = _expected(step, device, scaled, devices_per_node)
        return scaled, found.step_seconds

    slowest, fastest = with_scale(SMALLEST_SCALE)[1], with_scale(LARGEST_SCALE)[1]
    if not fastest <= seconds <= slowest:
        raise ValueError(
            f"a step of {seconds:.4g} s is not explained by {'compute' if computes else 'communication'}, "
            f"with which {device.name} takes {fastest:.4g} to {slowest:.4g} s: check that the run had this "
            "device"
        )
    low, high = SMALLEST_SCALE, LARGEST_SCALE
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if with_scale(middle)[1] > seconds else (low, middle)
    return with_scale(high)[0]


def _expected(
    step: StepWork, device: Device, calibration: Calibration, devices_per_node: int | None
) -> StepExpectation:
    found = step_expectation(step, device, devices_per_node=devices_per_node, calibration=calibration)
    assert found is not None, "it was there without a calibration"
    return found
