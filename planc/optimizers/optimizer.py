"""The type of an optimizer's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from planc.record import record

OptimizerName = Literal["adamw", "sgd"]
Implementation = Literal["auto", "fused", "foreach", "for_loop"]

STEP_BYTES = 4
"""Of a step counter, a float32 scalar for each parameter."""


class Settings(Protocol):
    """What an optimizer's memory depends on, as a graph has it. None is an argument that the kind lacks."""

    @property
    def momentum(self) -> float | None: ...

    @property
    def nesterov(self) -> bool | None: ...


@record(kw_only=True)
class OptimizerKind:
    """One of torch.optim's optimizers: what plans, graphs, estimates and runs know of it."""

    name: OptimizerName
    """In plans and graphs."""
    torch_class: str
    """In torch.optim."""
    arguments: tuple[str, ...]
    """Of the class, without lr and weight_decay. Plans and graphs use the same names."""
    auto_on_cuda: Implementation
    """The implementation that `auto` picks on CUDA."""
    auto_on_cpu: Implementation
    """The implementation that `auto` picks on CPUs."""
    has_step_counter: bool
    state_names: Callable[[Settings], tuple[str, ...]]
    """The tensors that it keeps for each parameter, each of the parameter's size, by torch's names."""
    num_temporaries: Callable[[Settings, bool, bool], int]
    """How many tensors of a parameter's size a step makes and frees: of settings, whether each parameter is
    updated by itself (`for_loop`, not `foreach`), and whether its weights decay."""
    usual_lr: tuple[str, str]
    """Between which peaks published runs train language models."""
    highest_lr: float
    """Above it, a learning rate is most likely a slip."""
