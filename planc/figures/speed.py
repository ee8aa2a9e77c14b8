"""Figures that a run measures: of the whole run, of one of its devices, of a process."""

from __future__ import annotations

from planc.figures.figure import Figure, Unit, num_bytes


def tokens_per_second(value: float) -> Figure:
    """Positions a second of all ranks together, padding and masked ones too: tokens_per_step over seconds."""
    return Figure("tokens_per_second", value, Unit.TOKENS_PER_SECOND)


def tokens_per_second_per_device(value: float) -> Figure:
    return Figure("tokens_per_second_per_device", value, Unit.DEVICE_TOKENS)


def tflops_per_second_per_device(value: float) -> Figure:
    """10^12 FLOPs of the model a second, without what checkpointing computes again."""
    return Figure("tflops_per_second_per_device", value, Unit.DEVICE_TFLOPS)


def measured_memory(value: int, *, kind: str) -> Figure:
    """The most of any rank so far: `allocated` on the device, or the host's `process` as a whole."""
    return num_bytes(f"{kind}_memory", value)
