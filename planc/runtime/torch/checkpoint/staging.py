"""Copies in host memory of what a rank writes, made during the next forward and reused by later saves.

A rank copies only its own chunks, so all ranks together hold one checkpoint, however many replicas train.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from planc.runtime.torch.checkpoint.planning import SavePlan


class Stage:
    """The copies that one rank writes. Their memory is allocated once, chunk by chunk."""

    def __init__(self, plan: SavePlan, *, device: torch.device) -> None:
        self.plan = plan
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies: dict[int, Tensor] = {}

    @property
    def copies(self) -> list[Tensor]:
        """The copies, in the order of the rank's file."""
        return [self._copies[index] for index in range(len(self._copies))]

    @property
    def num_bytes(self) -> int:
        """The size of all copies, once they are made."""
        return sum(copy.nbytes for copy in self._copies.values())

    def begin(self, tensors: Mapping[str, Tensor], *, at_once: Container[str]) -> Callable[[], None]:
        """Copy this rank's chunks of the tensors `at_once`, and return what copies the others.

        Any thread may call that, once. The others must not change before it returns.
        """
        now: list[tuple[int, Tensor]] = []
        later: list[tuple[int, Tensor]] = []
        for index, source in enumerate(self.plan.sources(tensors)):
            is_now = self.plan.chunks[index].tensor in at_once
            (now if is_now else later).append((index, source))
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._copy(now)
        return partial(self._copy, later)

    def _copy(self, sources: Sequence[tuple[int, Tensor]]) -> None:
        is_cuda = self._stream is not None
        with torch.no_grad(), nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for index, source in sources:
                if index not in self._copies:
                    # Pinned, because otherwise a device can't copy asynchronously.
                    self._copies[index] = torch.empty(
                        source.shape, dtype=source.dtype, device="cpu", pin_memory=is_cuda
                    )
                self._copies[index].copy_(source, non_blocking=is_cuda)
        if self._stream is not None:
            self._stream.synchronize()
