"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from planc.optimizers.optimizer import OptimizerKind, Settings


def _state_names(settings: Settings) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq")


def _num_temporaries(settings: Settings, is_for_loop: bool, decays: bool) -> int:
    # The square root of the second moments, which a loop then divides into another tensor (torch.optim.adam).
    return 2 if is_for_loop else 1


ADAMW = OptimizerKind(
    name="adamw",
    torch_class="AdamW",
    arguments=("betas", "eps"),
    # Not torch's default, `foreach`: it takes the square roots of all second moments at once.
    auto_on_cuda="fused",
    auto_on_cpu="fused",
    has_step_counter=True,
    state_names=_state_names,
    num_temporaries=_num_temporaries,
    usual_lr=("1e-5", "1e-2"),
    highest_lr=0.1,
)
