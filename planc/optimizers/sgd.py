"""SGD: gradient descent, with momentum or without."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.optimizers.optimizer import Implementation, OptimizerKind
from planc.record import record


@record(kw_only=True)
class Sgd(OptimizerKind):
    kind: Literal["sgd"] = "sgd"
    momentum: float
    nesterov: bool
    torch_class: ClassVar[str] = "SGD"
    auto_on_cuda: ClassVar[Implementation] = "foreach"
    auto_on_cpu: ClassVar[Implementation] = "for_loop"
    has_step_counter: ClassVar[bool] = False
    usual_lr: ClassVar[tuple[str, str]] = ("1e-3", "1")
    highest_lr: ClassVar[float] = 1.0

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        # The gradient with its decay; a loop adds the momentum to it in one more tensor (torch.optim.sgd).
        return int(decays) + int(is_for_loop and self.nesterov)
