"""Figures that a run measures: for the whole run, for one device, or for a process."""

from __future__ import annotations

from planc.figures.figure import Figure, Unit, num_bytes


def tokens_per_second(value: float) -> Figure:
    """Positions per second of all ranks, including padding and masked ones: tokens_per_step over seconds."""
    return Figure("tokens_per_second", value, Unit.TOKENS_PER_SECOND)


def tokens_per_second_per_device(value: float) -> Figure:
    return Figure("tokens_per_second_per_device", value, Unit.DEVICE_TOKENS)


def tflops_per_second_per_device(value: float) -> Figure:
    """The model's teraFLOPs per second, without recomputation."""
    return Figure("tflops_per_second_per_device", value, Unit.DEVICE_TFLOPS)


def measured_memory(value: int, *, kind: str) -> Figure:
    """The maximum of any rank so far: `allocated` on the device, or the whole `process` on the host."""
    return num_bytes(f"{kind}_memory", value)
