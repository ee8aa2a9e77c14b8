"""Copies in host memory of what a rank writes, made while training waits and reused by later saves.

A rank copies only its own chunks, so all ranks together hold one checkpoint, however many replicas train.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from planc.runtime.torch.checkpoint.planning import SavePlan


class Stage:
    """The copies that one rank writes; `copy` replaces their values in place."""

    def __init__(self, plan: SavePlan, *, device: torch.device) -> None:
        self.plan = plan
        self.copies: list[Tensor] = []
        self._device = device

    @property
    def num_bytes(self) -> int:
        """The size of all copies, once they are made."""
        return sum(copy.nbytes for copy in self.copies)

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy this rank's chunks as they are now. On return the tensors may change."""
        is_cuda = self._device.type == "cuda"
        for index, source in enumerate(self.plan.sources(tensors)):
            if index == len(self.copies):
                # Pinned, because otherwise a device can't copy asynchronously.
                self.copies.append(
                    torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=is_cuda)
                )
            self.copies[index].copy_(source, non_blocking=is_cuda)
        if is_cuda:
            torch.cuda.current_stream(self._device).synchronize()
