"""The base of optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Literal

from planc.record import record

Implementation = Literal["auto", "fused", "foreach", "for_loop"]

STEP_BYTES = 4
"""The size of a step counter, a float32 scalar for each parameter."""


@record(kw_only=True)
class OptimizerKind(ABC):
    """One of torch.optim's optimizers, with the arguments of its class, by their names there.

    Subclasses add `kind`, their name in plans and graphs. `lr`, `weight_decay` and the implementation are
    common to all, and no arguments.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    torch_class: ClassVar[str]
    """The name of the class in torch.optim."""
    auto_on_cuda: ClassVar[Implementation]
    """The implementation that `auto` picks on CUDA."""
    auto_on_cpu: ClassVar[Implementation]
    """The implementation that `auto` picks on CPUs."""
    has_step_counter: ClassVar[bool]
    usual_lr: ClassVar[tuple[str, str]]
    """Between which peaks published runs train language models."""
    highest_lr: ClassVar[float]
    """Above it, a learning rate is most likely a slip."""

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(one.name for one in fields(cls) if one.name != "kind")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return {name: getattr(self, name) for name in self.argument_names()}

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """The tensors that it keeps for each parameter, each of the parameter's size, by torch's names."""

    def state_bytes(self, num_elements: int, *, element: int) -> int:
        """Bytes of what it keeps for a parameter of so many elements of a size, and the step counter's."""
        counter = STEP_BYTES if self.has_step_counter else 0
        return len(self.state_names) * num_elements * element + counter

    @abstractmethod
    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        """How many tensors of a parameter's size a step makes and frees.

        `is_for_loop` updates each parameter by itself, not all in `foreach`; `decays` if its weights decay.
        """

    def __str__(self) -> str:
        """`adamw(betas=(0.9, 0.95), eps=1e-08)`."""
        name: str = getattr(self, "kind")  # noqa: B009  # every subclass has it; the base cannot give it a type
        return f"{name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"
