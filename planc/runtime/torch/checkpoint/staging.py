"""Copies in host memory of what a rank writes, made during the next forward and reused by later saves.

A rank copies only its own chunks, so all ranks together hold one checkpoint, however many replicas train.
A device copies asynchronously into pinned memory only. Pinning takes seconds for a few GB, so a thread does
it before the first save is due.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from planc.runtime.torch.checkpoint.planning import SavePlan


class Stage:
    """The copies that one rank writes, whose memory is allocated once."""

    def __init__(self, plan: SavePlan, tensors: Mapping[str, Tensor], *, device: torch.device) -> None:
        self.plan = plan
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._kinds = [(source.shape, source.dtype) for source in plan.sources(tensors)]
        self.copies: list[Tensor] = []
        """The copies, in the order of the rank's file, once they are allocated."""

    @property
    def num_bytes(self) -> int:
        """The size of all copies, once they are allocated."""
        return sum(copy.nbytes for copy in self.copies)

    def allocate(self) -> None:
        """Allocate the copies, chunk by chunk. Any thread may call it, once, before the first copy."""
        with self._on_stream():
            for shape, dtype in self._kinds:
                is_pinned = self._stream is not None
                self.copies.append(torch.empty(shape, dtype=dtype, device="cpu", pin_memory=is_pinned))

    def begin(self, tensors: Mapping[str, Tensor], *, changing: Container[str]) -> Callable[[], None]:
        """Return what copies this rank's chunks of the tensors. Any thread may call that, once.

        Until it returns, only those that are `changing` may change: of them it copies the values of now.
        """
        sources = [
            source.clone() if chunk.tensor in changing else source
            for chunk, source in zip(self.plan.chunks, self.plan.sources(tensors), strict=True)
        ]
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return partial(self._copy, sources)

    def _copy(self, sources: Sequence[Tensor]) -> None:
        with torch.no_grad(), self._on_stream():
            for copy, source in zip(self.copies, sources, strict=True):
                copy.copy_(source, non_blocking=self._stream is not None)
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
