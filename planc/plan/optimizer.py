"""Optimizers, learning rate schedules and parameter groups."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from planc.optimizers import BY_NAME, OptimizerKind
from planc.plan.scalars import Bool, Choice, Float
from planc.plan.shares import StepsOrShare
from planc.plan.types import List, Optional, key
from planc.record import record

if TYPE_CHECKING:
    from fractions import Fraction


class Implementation(StrEnum):
    AUTO = "auto"
    FUSED = "fused"
    FOREACH = "foreach"
    FOR_LOOP = "for_loop"


class SgdImplementation(StrEnum):
    """Without `fused`: torch's fused SGD kernel does not support sharded parameters."""

    AUTO = "auto"
    FOREACH = "foreach"
    FOR_LOOP = "for_loop"


_LOOPS = "operations over all parameters at once (foreach), or a loop over parameters (for_loop)"


@record
class AdamW:
    lr: float = key(Float(0.0), doc="peak learning rate", example="3e-4")
    betas: tuple[float, float] = key(
        List(Float(0.0, 0.999999), 2), default=(0.9, 0.999), doc="moment decay rates"
    )
    eps: float = key(Float(0.0), default=1e-8, doc="added to the denominator")
    weight_decay: float = key(Float(0.0), default=0.01, doc="decoupled weight decay")
    implementation: Implementation = key(
        Choice(Implementation),
        default=Implementation.AUTO,
        doc=f"one kernel (fused), {_LOOPS}; auto is fused",
    )


@record
class Sgd:
    """Stochastic gradient descent, without state if `momentum` is 0."""

    lr: float = key(Float(0.0), doc="peak learning rate", example="3e-4")
    momentum: float = key(Float(0.0, 0.999999), default=0.0, doc="momentum factor")
    weight_decay: float = key(Float(0.0), default=0.0, doc="L2 penalty, added to the gradient")
    nesterov: bool = key(Bool(), default=False, doc="use Nesterov momentum")
    implementation: SgdImplementation = key(
        Choice(SgdImplementation),
        default=SgdImplementation.AUTO,
        doc=f"{_LOOPS}; auto is foreach on CUDA, otherwise for_loop",
    )


def _warmup() -> Any:
    """The key of a schedule's first steps, whatever comes after them."""
    return key(
        StepsOrShare(),
        default=0,
        doc="linear warm-up, in steps or as a share of all steps",
        example="100 steps",
    )


def _min_factor() -> Any:
    """The key of a schedule's end, for all that decay."""
    return key(Float(0.0, 1.0), default=0.0, doc="the last step's learning rate, as a share of the peak")


@record
class Cosine:
    """Linear warm-up, then half a cosine down to `min_factor` of the peak at the last step."""

    warmup: int | Fraction = _warmup()
    min_factor: float = _min_factor()


@record
class Linear:
    """Linear warm-up, then a line down to `min_factor` of the peak at the last step."""

    warmup: int | Fraction = _warmup()
    min_factor: float = _min_factor()


@record
class Constant:
    """Linear warm-up, then the peak."""

    warmup: int | Fraction = _warmup()


@record
class WarmupStableDecay:
    """Linear warm-up, the peak, then a line down to `min_factor` of the peak at the last step (WSD)."""

    warmup: int | Fraction = _warmup()
    decay: int | Fraction = key(
        StepsOrShare(1), doc="decay at the end, in steps or as a share of all steps", example="100 steps"
    )
    min_factor: float = _min_factor()


Optimizer = AdamW | Sgd
OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adamw": AdamW, "sgd": Sgd}
Schedule = Cosine | Linear | Constant | WarmupStableDecay
SCHEDULES: Mapping[str, type[Schedule]] = {
    "cosine": Cosine,
    "linear": Linear,
    "constant": Constant,
    "wsd": WarmupStableDecay,
}


def kind_of(optimizer: Optimizer) -> type[OptimizerKind]:
    """What planc knows of this kind of optimizer."""
    return next(BY_NAME[name] for name, case in OPTIMIZERS.items() if isinstance(optimizer, case))


@record
class Group:
    """Options of some parameters; none keeps the optimizer's own value."""

    weight_decay: float | None = key(
        Optional(Float(0.0)), default=None, doc="weight decay of these parameters"
    )
    lr: float | None = key(
        Optional(Float(0.0)),
        default=None,
        doc="their peak learning rate; `freeze` keeps parameters as they are without gradients and moments",
    )
