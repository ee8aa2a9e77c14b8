"""The kernels of attention: a table by device, dtype, head dims and masks. Reads no hardware."""

from __future__ import annotations

from enum import StrEnum

from planc.record import record
from planc.vocab import DType


class Kernel(StrEnum):
    """A kind of attention kernel, by what it keeps for backward and what it takes."""

    FLASH = "flash"
    """PyTorch's flash kernel, or cuDNN's, which takes and keeps the same: no scores, grouped heads as they
    are."""
    EFFICIENT = "memory-efficient"
    """Keeps no scores either. planc repeats keys and values for grouped heads while it runs, forward and
    backward, since PyTorch's own dispatch would otherwise take `math`."""
    MATH = "math"
    """Products and a softmax. The scores of one layer exist while it runs, forward and backward."""


@record
class AttentionCall:
    """A call of attention, by all that its kernel depends on apart from the device."""

    dtype: DType
    head_dim: int
    value_dim: int
    has_mask: bool = False
    """A window shorter than the sequence, or documents in one sequence. Causality alone is not a mask."""

    def __str__(self) -> str:
        value = "" if self.value_dim == self.head_dim else f"/{self.value_dim}"
        return f"{self.dtype} {self.head_dim}{value}{' masked' if self.has_mask else ''}"


@record
class _Row:
    kernel: Kernel
    dtypes: tuple[DType, ...]
    max_head_dim: int | None = None
    equal_dims: bool = False
    masks: bool = True

    def takes(self, call: AttentionCall) -> bool:
        return (
            call.dtype in self.dtypes
            and (self.max_head_dim is None or call.head_dim <= self.max_head_dim)
            and (not self.equal_dims or call.head_dim == call.value_dim)
            and (self.masks or not call.has_mask)
        )


_HALF = (DType.BFLOAT16, DType.FLOAT16)

# From aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, of devices from compute capability 8.0 on. CPUs'
# flash kernel takes values of the queries' width, which planc pads them to.
TABLE: dict[str, tuple[_Row, ...]] = {
    "cpu": (_Row(Kernel.FLASH, (*_HALF, DType.FLOAT32, DType.FLOAT64)),),
    "cuda": (
        _Row(Kernel.FLASH, _HALF, max_head_dim=256, equal_dims=True, masks=False),
        _Row(Kernel.EFFICIENT, (*_HALF, DType.FLOAT32)),
    ),
}
"""The rows of each device, in order of preference. What no row takes is `math`."""


def kernel_of(call: AttentionCall, *, device: str) -> Kernel:
    """The kernel that planc computes a call with. `device` is PyTorch's name of the kind."""
    rows = TABLE.get(device, ())
    return next((row.kernel for row in rows if row.takes(call)), Kernel.MATH)


def head_dim_multiple(kernel: Kernel, *, device: str, dtype: DType) -> int:
    """The kernel takes head dims that are divisible by this; planc pads others with zeros."""
    if device != "cuda" or kernel is Kernel.MATH:
        return 1
    return 8 if dtype in _HALF else 4
