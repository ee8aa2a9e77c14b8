"""The FLOP/s and MFU of a step, by the convention of `planc estimate` (planc/estimate/flops.py)."""

from __future__ import annotations

from dataclasses import dataclass

_TERA = 10**12


@dataclass(frozen=True, slots=True)
class Work:
    """The model FLOPs of a step over all ranks, without the recomputation of activation checkpointing.

    `peak_flops` are the dense bfloat16 FLOP/s of the device that the plan names; None if it names no device.
    """

    flops_per_step: int
    world_size: int
    peak_flops: float | None = None

    def tflops_per_second_per_device(self, *, seconds: float) -> float:
        """10^12 model FLOPs per second of one rank, which has one device."""
        return self.flops_per_step / self.world_size / seconds / _TERA

    def mfu(self, *, seconds: float) -> float | None:
        """Model FLOPs utilization (PaLM, appendix B): a fraction of the device's peak; None if unknown."""
        if self.peak_flops is None:
            return None
        return self.flops_per_step / self.world_size / seconds / self.peak_flops
