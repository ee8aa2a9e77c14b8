"""SGD: gradient descent, with momentum or without."""

from __future__ import annotations

from planc.optimizers.optimizer import OptimizerKind, Settings


def _state_names(settings: Settings) -> tuple[str, ...]:
    return ("momentum_buffer",) if settings.momentum else ()


def _num_temporaries(settings: Settings, is_for_loop: bool, decays: bool) -> int:
    # The gradient with its decay; a loop adds the momentum to it in one more tensor (torch.optim.sgd).
    return int(decays) + int(is_for_loop and bool(settings.nesterov))


SGD = OptimizerKind(
    name="sgd",
    torch_class="SGD",
    arguments=("momentum", "nesterov"),
    auto_on_cuda="foreach",
    auto_on_cpu="for_loop",
    has_step_counter=False,
    state_names=_state_names,
    num_temporaries=_num_temporaries,
    usual_lr=("1e-3", "1"),
    highest_lr=1.0,
)
