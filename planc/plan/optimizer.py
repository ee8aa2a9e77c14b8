"""Optimizers, learning rate schedules and parameter groups."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from planc.extend.reference import Extension
from planc.optimizers import BY_NAME, OptimizerKind
from planc.optimizers.own import OwnOptimizer as OwnKind
from planc.plan.keys import key, keyed
from planc.plan.scalars import Bool, Choice, Float, Int
from planc.plan.shares import StepsOrShare
from planc.plan.types import List, Optional, Variant
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


@keyed
class Adam:
    """The keys of every AdamW."""

    lr: float = key(Float(0.0), doc="peak learning rate", example="3e-4")
    betas: tuple[float, float] = key(
        List(Float(0.0, 0.999999), 2), unsaid=(0.9, 0.999), doc="moment decay rates"
    )
    eps: float = key(Float(0.0), unsaid=1e-8, doc="added to the denominator")
    weight_decay: float = key(Float(0.0), unsaid=0.01, doc="decoupled weight decay")


@keyed
class AdamW(Adam):
    implementation: Implementation = key(
        Choice(Implementation),
        unsaid=Implementation.AUTO,
        doc=f"one kernel (fused), {_LOOPS}; auto is fused",
    )


@keyed
class AdamW8bit(Adam):
    """AdamW with moments of 8 bits for each element of a matrix, and a scale for each block of them."""

    block: int = key(Int(1, 1 << 16), unsaid=256, doc="columns of a row that share a scale, a float32 number")


@record
class AdamWBf16(Adam):
    """AdamW with bfloat16 moments, rounded up or down at random: their mean is exact."""


@keyed
class Sgd:
    """Stochastic gradient descent, without state if `momentum` is 0."""

    lr: float = key(Float(0.0), doc="peak learning rate", example="3e-4")
    momentum: float = key(Float(0.0, 0.999999), unsaid=0.0, doc="momentum factor")
    weight_decay: float = key(Float(0.0), unsaid=0.0, doc="L2 penalty, added to the gradient")
    nesterov: bool = key(Bool(), unsaid=False, doc="use Nesterov momentum")
    implementation: SgdImplementation = key(
        Choice(SgdImplementation),
        unsaid=SgdImplementation.AUTO,
        doc=f"{_LOOPS}; auto is foreach on CUDA, otherwise for_loop",
    )


class NewtonSchulzDType(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class LearningRateScale(StrEnum):
    ORIGINAL = "original"
    MATCH_RMS_ADAMW = "match_rms_adamw"


@keyed
class Muon:
    """Orthogonalized momentum for the matrices of hidden layers, and AdamW for the rest.

    The rest is embeddings, the head, routers, and parameters that are not matrices.
    """

    lr: float = key(Float(0.0), doc="peak learning rate of matrices", example="2e-2")
    rest: AdamW = key(
        Variant({"adamw": AdamW}, "optimizer"),
        doc="the optimizer of all other parameters, with its own lr and weight_decay",
        example="adamw(lr = 3e-4)",
    )
    momentum: float = key(Float(0.0, 0.999999), unsaid=0.95, doc="momentum factor")
    nesterov: bool = key(Bool(), unsaid=True, doc="use Nesterov momentum")
    weight_decay: float = key(Float(0.0), unsaid=0.1, doc="decoupled weight decay of matrices")
    ns_steps: int = key(Int(1, 99), unsaid=5, doc="Newton-Schulz iterations")
    ns_dtype: NewtonSchulzDType = key(
        Choice(NewtonSchulzDType),
        unsaid=NewtonSchulzDType.BFLOAT16,
        doc="dtype of the iterations, and of what ranks send for them",
    )
    lr_scale: LearningRateScale = key(
        Choice(LearningRateScale),
        unsaid=LearningRateScale.ORIGINAL,
        doc="factor of lr for a matrix [out, in]: sqrt(max(1, out / in)) (original), "
        "or 0.2 sqrt(max(out, in)), for an lr of AdamW (match_rms_adamw)",
    )


_WARMUP = "linear warm-up, in steps or as a share of all steps"
_MIN_FACTOR = "the rate one step after the last, as a share of the peak"


@keyed
class Cosine:
    """Linear warm-up, then half a cosine down towards `min_factor` of the peak."""

    warmup: int | Fraction = key(StepsOrShare(), unsaid=0, doc=_WARMUP, example="100 steps")
    min_factor: float = key(Float(0.0, 1.0), unsaid=0.0, doc=_MIN_FACTOR)


@keyed
class Linear:
    """Linear warm-up, then a line down towards `min_factor` of the peak."""

    warmup: int | Fraction = key(StepsOrShare(), unsaid=0, doc=_WARMUP, example="100 steps")
    min_factor: float = key(Float(0.0, 1.0), unsaid=0.0, doc=_MIN_FACTOR)


@keyed
class Constant:
    """Linear warm-up, then the peak."""

    warmup: int | Fraction = key(StepsOrShare(), unsaid=0, doc=_WARMUP, example="100 steps")


@keyed
class WarmupStableDecay:
    """Linear warm-up, the peak, then a line down towards `min_factor` of the peak (WSD)."""

    warmup: int | Fraction = key(StepsOrShare(), unsaid=0, doc=_WARMUP, example="100 steps")
    decay: int | Fraction = key(
        StepsOrShare(1), doc="decay at the end, in steps or as a share of all steps", example="100 steps"
    )
    min_factor: float = key(Float(0.0, 1.0), unsaid=0.0, doc=_MIN_FACTOR)


@record
class OwnOptimizer:
    """An optimizer of the plan's own. `extension` has its other arguments."""

    lr: float
    weight_decay: float
    extension: Extension
    state: tuple[str, ...]
    decays: bool
    """Whether it takes `weight_decay`."""


@record
class OwnSchedule:
    """A schedule of the plan's own, which has a warm-up of its own or none."""

    extension: Extension
    warmup: int | Fraction = 0


Optimizer = AdamW | Sgd | Muon | AdamW8bit | AdamWBf16 | OwnOptimizer
OPTIMIZERS: Mapping[str, type[AdamW | Sgd | Muon | AdamW8bit | AdamWBf16]] = {
    "adamw": AdamW,
    "sgd": Sgd,
    "muon": Muon,
    "adamw_8bit": AdamW8bit,
    "adamw_bf16": AdamWBf16,
}
Schedule = Cosine | Linear | Constant | WarmupStableDecay | OwnSchedule
SCHEDULES: Mapping[str, type[Cosine | Linear | Constant | WarmupStableDecay]] = {
    "cosine": Cosine,
    "linear": Linear,
    "constant": Constant,
    "wsd": WarmupStableDecay,
}


def kind_of(optimizer: Optimizer) -> type[OptimizerKind]:
    """Return the record of this kind of optimizer."""
    if isinstance(optimizer, OwnOptimizer):
        return OwnKind
    return next(BY_NAME[name] for name, case in OPTIMIZERS.items() if type(optimizer) is case)


def optimizers_of(kind: Optimizer) -> tuple[tuple[str, Optimizer], ...]:
    """The optimizer and the one that it has for the rest of the parameters, with the settings they are at."""
    path = "optimizer.kind"
    return ((path, kind), (f"{path}.rest", kind.rest)) if isinstance(kind, Muon) else ((path, kind),)


@keyed
class Group:
    """Options of some parameters; none keeps the optimizer's own value."""

    weight_decay: float | None = key(
        Optional(Float(0.0)), unsaid=None, doc="weight decay of these parameters"
    )
    lr: float | None = key(
        Optional(Float(0.0)),
        unsaid=None,
        doc="their peak learning rate; `freeze` keeps parameters as they are without gradients and moments",
    )
    rest: bool | None = key(
        Optional(Bool()),
        unsaid=None,
        doc="whether `rest` of muon(...) updates these matrices",
    )
