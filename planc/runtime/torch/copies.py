"""Copies between the host and a device whose queue the host does not wait for."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, *, has_queue: bool) -> Tensor:
    """A tensor in the host's memory, on the device. It is pinned first, or its copy would block."""
    return tensor.pin_memory().to(device, non_blocking=True) if has_queue else tensor.to(device)


class Arrival:
    """A tensor on its way to the host, which need not wait for it."""

    def __init__(self, tensor: Tensor, *, has_queue: bool) -> None:
        self._values = tensor
        self._event: torch.cuda.Event | None = None
        if has_queue:
            self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._values.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def values(self) -> Tensor:
        """The tensor in the host's memory; the host waits if it is not there yet."""
        if self._event is not None and not self.is_there():
            self._event.synchronize()
        return self._values
