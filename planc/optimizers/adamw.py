"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.optimizers.optimizer import Implementation, OptimizerKind
from planc.record import record


@record(kw_only=True)
class AdamW(OptimizerKind):
    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float]
    eps: float
    torch_class: ClassVar[str] = "AdamW"
    # Not torch's default, `foreach`: it takes the square roots of all second moments at once.
    auto_on_cuda: ClassVar[Implementation] = "fused"
    auto_on_cpu: ClassVar[Implementation] = "fused"
    has_step_counter: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[str, str]] = ("1e-5", "1e-2")
    highest_lr: ClassVar[float] = 0.1

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        # The square root of the second moments, which a loop then divides into another tensor
        # (torch.optim.adam).
        return 2 if is_for_loop else 1
