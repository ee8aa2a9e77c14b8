"""An optimizer of the plan's own: a function that updates one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

from planc.extend.reference import Extension
from planc.optimizers.optimizer import Implementation, OptimizerKind
from planc.record import record

_COPIES = 3
"""Copies of a tensor that such a function may make at a time: nobody knows, and two or three are usual."""


@record(kw_only=True)
class OwnOptimizer(OptimizerKind):
    """`state` are the names of the tensors that it keeps for each parameter."""

    kind: Literal["own"] = "own"
    extension: Extension
    state: tuple[str, ...]
    torch_class: ClassVar[str] = "OwnOptimizer"
    module: ClassVar[str] = "planc"
    auto_on_cuda: ClassVar[Implementation] = "for_loop"
    auto_on_cpu: ClassVar[Implementation] = "for_loop"
    has_step_counter: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[str, str]] = ("0", "inf")
    highest_lr: ClassVar[float] = float("inf")

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.state

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        # `update_bytes` has them.
        return 0

    def update_bytes(self, shape: Sequence[int], *, element: int) -> int:
        return _COPIES * element * prod(shape)
