"""The kernels of attention: a table by device, dtype, head dims and masks. Reads no hardware."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from itertools import product, takewhile

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
    """Products and a softmax, of `MATH_ROWS` queries at a time. Their scores alone exist, and only while they
    are computed, forward and backward."""


@record
class AttentionCall:
    """A call of attention, by all that its kernel depends on apart from the device."""

    dtype: DType
    head_dim: int
    value_dim: int
    has_mask: bool = False
    """A window shorter than the sequence, or documents in one sequence. Causality alone is not a mask."""
    has_softcap: bool = False
    """Scores are capped by a tanh before the softmax (Gemma 2)."""

    def __str__(self) -> str:
        value = "" if self.value_dim == self.head_dim else f"/{self.value_dim}"
        words = " masked" * self.has_mask + " capped" * self.has_softcap
        return f"{self.dtype} {self.head_dim}{value}{words}"


MATH_ROWS = 256
_WINDOW_ROWS = 1024
"""Fewer queries at a time would be a kernel each for too little work."""


def window_rows(window: int, *, num_queries: int, is_math: bool = False) -> int | None:
    """The queries that a kernel takes at a time under a window; None if it takes all.

    Each such tile of queries needs its own keys and the window - 1 before them: work and masks grow with the
    length, and not with its square. `math` takes few queries at a time in any case.
    """
    if is_math:
        return MATH_ROWS if num_queries > MATH_ROWS else None
    rows = max(window, _WINDOW_ROWS)
    # A query in a tile meets 2 x rows keys: with a shorter sequence, less than half of the work is spared.
    return rows if num_queries >= 4 * rows else None


def ring_rows(*, num_queries: int, is_math: bool) -> int:
    """The queries that a ring's kernel takes at a time under a window, of consecutive `num_queries`."""
    return min(MATH_ROWS if is_math else _WINDOW_ROWS, num_queries)


@cache
def ring_steps(size: int, *, length: int, window: int | None, is_headtail: bool) -> tuple[int, ...]:
    """The steps of a ring of `size` ranks at which some rank sees a part of the shard that visits it.

    At step s, rank r is visited by the shard of rank r - s. Each has `length` tokens.
    """
    if window is None:
        return tuple(range(size))
    run = length // 2 if is_headtail else length

    def places(rank: int) -> Iterator[int]:
        yield rank % size * run
        if is_headtail:
            yield (2 * size - 1 - rank % size) * run

    def sees(step: int) -> bool:
        pairs = (pair for rank in range(size) for pair in product(places(rank), places(rank - step)))
        return any(own == other or 0 < own - other < run + window - 1 for own, other in pairs)

    return tuple(step for step in range(size) if sees(step))


@record
class AttentionSetting:
    """The parts that the calls of all of a model's attentions share under a plan."""

    kind: str
    """plain, bidirectional, encoder_decoder, ring, allgather, ulysses, or eager for the model's own code."""
    dtype: DType
    sequence_length: int
    isolates: bool
    """Whether tokens attend only to their own document."""
    is_compiled: bool

    @property
    def masks_documents(self) -> bool:
        """Each document is computed by itself, except in compiled layers: a ring is never compiled."""
        return self.isolates and self.is_compiled and self.kind != "ring"

    def call(
        self, *, head_dim: int, value_dim: int | None, window: int | None, has_softcap: bool
    ) -> AttentionCall:
        """The call of an attention with these sizes, given as the inventory has them."""
        hides = window is not None and window < self.sequence_length
        has_mask = self.masks_documents or hides
        return AttentionCall(self.dtype, head_dim, value_dim or head_dim, has_mask, has_softcap)


@record
class AttentionUse:
    """Attentions of equal sizes that the same kernel computes."""

    modules: tuple[str, ...]
    kernel: Kernel | None
    """None for the model's own code."""
    call: AttentionCall | None
    reasons: tuple[str, ...]
    """Reasons that no better kernel computes them."""
    pair_bytes: int
    """The most that a rank holds at a time for pairs of tokens: scores, weights and masks."""

    @property
    def name(self) -> str:
        """The kernel's, or `eager` for the model's own code."""
        return "eager" if self.kernel is None else str(self.kernel)


@record
class _Row:
    kernel: Kernel
    dtypes: tuple[DType, ...]
    max_head_dim: int | None = None
    equal_dims: bool = False
    masks: bool = True

    def refusal(self, call: AttentionCall) -> str:
        """Explain why the kernel doesn't take a call; empty if it does."""
        if call.has_softcap:
            return f"{self.kernel} takes no soft cap"
        if call.dtype not in self.dtypes:
            return f"{self.kernel} takes no {call.dtype}"
        if self.max_head_dim is not None and call.head_dim > self.max_head_dim:
            return f"{self.kernel} takes head dims up to {self.max_head_dim}, not {call.head_dim}"
        if self.equal_dims and call.head_dim != call.value_dim:
            return f"{self.kernel} takes no values of {call.value_dim} for keys of {call.head_dim}"
        return "" if self.masks or not call.has_mask else f"{self.kernel} takes no mask"


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
    return next((row.kernel for row in rows if not row.refusal(call)), Kernel.MATH)


def refusals(call: AttentionCall, *, device: str) -> tuple[str, ...]:
    """List why each better kernel than the call's own doesn't take it: `flash takes no mask`."""
    if device not in TABLE:
        return (f"no kernel is known for {device}",)
    found = (row.refusal(call) for row in TABLE[device])
    return tuple(takewhile(bool, found))


def head_dim_multiple(kernel: Kernel, *, device: str, dtype: DType) -> int:
    """The kernel takes head dims that are divisible by this; planc pads others with zeros."""
    if device != "cuda" or kernel is Kernel.MATH:
        return 1
    return 8 if dtype in _HALF else 4
