"""FLOP/s and MFU of a step, by the convention of `planc estimate` (planc/estimate/flops.py)."""

from __future__ import annotations

from dataclasses import dataclass

_TERA = 10**12


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes: the model's own FLOPs over all ranks, without what checkpointing repeats.

    `peak_flops` are the dense bfloat16 FLOP/s of the device that the plan names; None where it names none.
    """

    flops_per_step: int
    world_size: int
    peak_flops: float | None = None

    def tflops_per_second_per_device(self, *, seconds: float) -> float:
        """10^12 model FLOPs a second of one rank, which has one device."""
        return self.flops_per_step / self.world_size / seconds / _TERA

    def mfu(self, *, seconds: float) -> float | None:
        """Model FLOPs utilisation (PaLM, appendix B), of 1: what was reached of the device's peak."""
        if self.peak_flops is None:
            return None
        return self.flops_per_step / self.world_size / seconds / self.peak_flops
