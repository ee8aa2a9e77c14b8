"""AdamW with moments of few bits: of 8 in blocks, or bfloat16 rounded at random.

planc's own step computes in float32 with each moment as it is read, updates the weights by the new moments,
and then stores these. What a block and a random number belong to is an element's place in the whole
parameter, so every mesh stores the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

from planc.optimizers.optimizer import Implementation, Kept, OptimizerKind
from planc.record import record

MOMENTS = ("exp_avg", "exp_avg_sq")
SCALE = "_scale"
"""The suffix of a moment's name in that of its blocks' largest magnitudes."""
AT_ONCE = 1 << 22
"""Elements that are updated at once; at least a row."""


@record(kw_only=True)
class StoredAdamW(OptimizerKind):
    """The settings that such optimizers have in common."""

    betas: tuple[float, float]
    eps: float
    module: ClassVar[str] = "planc"
    auto_on_cuda: ClassVar[Implementation] = "for_loop"
    auto_on_cpu: ClassVar[Implementation] = "for_loop"
    has_step_counter: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[str, str]] = ("1e-5", "1e-2")
    highest_lr: ClassVar[float] = 0.1

    @property
    def state_names(self) -> tuple[str, ...]:
        return MOMENTS

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        # `update_bytes` has them.
        return 0

    def update_bytes(self, shape: Sequence[int], *, element: int) -> int:
        # In float32: two moments, two temporaries of their storage, and the update.
        columns = shape[-1] if shape else 1
        num_rows = max(1, AT_ONCE // max(1, columns))
        return 5 * 4 * min(prod(shape), num_rows * columns)


@record(kw_only=True)
class AdamW8bit(StoredAdamW):
    """Moments of matrices are codes of 8 bits, with a float32 scale for each `block` of a row's columns."""

    kind: Literal["adamw_8bit"] = "adamw_8bit"
    block: int
    torch_class: ClassVar[str] = "AdamW8bit"

    def kept(self, num_dims: int) -> tuple[Kept, ...]:
        if num_dims < 2:
            return tuple(Kept(name, "float32") for name in MOMENTS)
        scales = (Kept(name + SCALE, "float32", self.block) for name in MOMENTS)
        return (*(Kept(name, "uint8") for name in MOMENTS), *scales)


@record(kw_only=True)
class AdamWBf16(StoredAdamW):
    """Moments are bfloat16, rounded up or down at random: their mean is exact."""

    kind: Literal["adamw_bf16"] = "adamw_bf16"
    torch_class: ClassVar[str] = "AdamWBf16"

    def kept(self, num_dims: int) -> tuple[Kept, ...]:
        return tuple(Kept(name, "bfloat16") for name in MOMENTS)


def codes(*, is_signed: bool) -> tuple[float, ...]:
    """The value of each code of 8 bits, ascending, of magnitudes up to 1.

    Dettmers' dynamic tree (arXiv 2110.02861), as bitsandbytes has it: of each of seven powers of ten, twice
    as many evenly spaced fractions as of the power below.
    """
    values = [0.0, 1.0]
    for power in range(7):
        number = 2**power if is_signed else 2 ** (power + 1)
        magnitudes = [10.0 ** (power - 6) * (0.1 + 0.9 * (at + 0.5) / number) for at in range(number)]
        values += magnitudes + ([-value for value in magnitudes] if is_signed else [])
    return tuple(sorted(values))
