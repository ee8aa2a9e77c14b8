"""The base of optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import Any, ClassVar, Literal

from planc.record import record

Implementation = Literal["auto", "fused", "foreach", "for_loop"]

Stored = Literal["uint8", "bfloat16", "float32"]

STEP_BYTES = 4
"""The size of a step counter, a float32 scalar for each parameter."""


@record
class Kept:
    """A tensor that an optimizer keeps for each parameter, of its shape.

    `dtype` is None for the parameter's own. `block` is how many columns share an element.
    """

    name: str
    dtype: Stored | None = None
    block: int = 1

    def shape(self, of: Sequence[int]) -> tuple[int, ...]:
        """The shape of that of a parameter, or of a rank's part of one."""
        return (*of[:-1], -(-of[-1] // self.block)) if self.block > 1 else tuple(of)

    def num_bytes(self, of: Sequence[int], *, element: int) -> int:
        """The size for a parameter whose elements have a size."""
        return prod(self.shape(of)) * (_STORED_BYTES[self.dtype] if self.dtype else element)

    def __str__(self) -> str:
        """`exp_avg_sq (bfloat16)`."""
        return f"{self.name} ({self.dtype})" if self.dtype else self.name


_STORED_BYTES = {"uint8": 1, "bfloat16": 2, "float32": 4}


@record(kw_only=True)
class OptimizerKind(ABC):
    """One of torch.optim's optimizers, or of planc's own, with the arguments of its class, by their names.

    Subclasses add `kind`, their name in plans and graphs. `lr`, `weight_decay` and the implementation are
    common to all, and no arguments.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    torch_class: ClassVar[str]
    """The name of the class in `module`."""
    module: ClassVar[str] = "torch.optim"
    """`planc` for its own."""
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
        """The tensors that it keeps for each parameter, by torch's names."""

    def kept(self, num_dims: int) -> tuple[Kept, ...]:
        """Return the tensors kept for a parameter of so many dimensions, which are like it."""
        return tuple(Kept(name) for name in self.state_names)

    def state_bytes(self, shape: Sequence[int], *, element: int) -> int:
        """Bytes of what it keeps for a parameter with elements of a size, and the step counter's."""
        counter = STEP_BYTES if self.has_step_counter else 0
        return counter + sum(kept.num_bytes(shape, element=element) for kept in self.kept(len(shape)))

    @abstractmethod
    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        """Return the number of tensors of a parameter's size that a step makes and frees.

        `is_for_loop` updates each parameter by itself, not all in `foreach`; `decays` if its weights decay.
        """

    def update_bytes(self, shape: Sequence[int], *, element: int) -> int:
        """Return the bytes that the update of a rank's part of a parameter makes and frees otherwise."""
        return 0

    def __str__(self) -> str:
        """`adamw(betas=(0.9, 0.95), eps=1e-08)`."""
        name: str = getattr(self, "kind")  # noqa: B009  # every subclass has it; the base cannot give it a type
        return f"{name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"
