"""The number of steps, their size, and how their loss is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from planc.extend.declarations import Declaration
from planc.extend.decorators import CALLBACK, LOSS, METRIC
from planc.extend.reference import Extension, OwnCallback, OwnMetric
from planc.plan.extensions import OnlyExtension, OrExtension
from planc.plan.keys import key, keyed
from planc.plan.model_source import ModelSource
from planc.plan.quantities import STEPS
from planc.plan.scalars import Float, Int, Path, Quantity
from planc.plan.shares import Weight
from planc.plan.train_length import Tokens
from planc.plan.types import List, Optional, OrAuto, Variant

if TYPE_CHECKING:
    from fractions import Fraction


def _metric(extension: Extension, declaration: Declaration) -> OwnMetric:
    return OwnMetric(extension=extension, reduce=_chosen(declaration, "reduce", "mean"))


def _callback(extension: Extension, declaration: Declaration) -> OwnCallback:
    ranks = _chosen(declaration, "ranks", "zero")
    return OwnCallback(extension=extension, ranks=ranks, points=declaration.methods)


def _chosen(declaration: Declaration, option: str, default: str) -> Any:
    """The word of an option, which is one of its kind's."""
    (word,) = dict(declaration.options).get(option, (default,))
    return word


def _code(value: OwnMetric | OwnCallback) -> Extension:
    return value.extension


def _name(value: OwnMetric | OwnCallback) -> str:
    return value.extension.entry


_METRICS = List(OnlyExtension(METRIC, _metric, _code), name_of=_name)
_CALLBACKS = List(OnlyExtension(CALLBACK, _callback, _code), name_of=_name)


@keyed
class CrossEntropy:
    """The negative log-likelihood of each label, and terms that keep logits from growing."""

    label_smoothing: float = key(
        Float(0.0, 0.999999), unsaid=0.0, doc="share of each label that goes to the whole vocabulary evenly"
    )
    z_loss: float = key(
        Float(0.0), unsaid=0.0, doc="times the square of the logarithm of the softmax's denominator"
    )

    @property
    def has_terms(self) -> bool:
        """True if a term is added to the negative log-likelihood."""
        return self.label_smoothing > 0 or self.z_loss > 0


@keyed
class Preference:
    """Direct preference optimization: how much more likely than at the start a chosen answer has become,
    compared with the rejected one."""

    beta: float = key(
        Float(1e-6), unsaid=0.1, doc="times the difference of the log-probabilities of both answers"
    )
    label_smoothing: float = key(
        Float(0.0, 0.499999), unsaid=0.0, doc="share of the pairs whose answers are taken to be swapped"
    )
    reference: str | None = key(
        Optional(ModelSource()),
        unsaid=None,
        doc="a model of the same architecture whose log-probabilities are the reference; none is the weights "
        "that training starts from",
        example='"runs/first/export/hf"',
    )


@keyed
class Distillation:
    """The cross entropy of each label, and the divergence of the model's probabilities from a teacher's.

    `planc teacher` stores the teacher's log-probabilities of its `top_k` likeliest tokens at every position.
    """

    teacher: str = key(
        ModelSource(),
        doc="a model with the same tokenizer and vocabulary, of any architecture",
        example='"models/teacher"',
    )
    logits: str = key(Path(), doc="the directory of the stored log-probabilities", example='"teacher-logits"')
    top_k: int = key(Int(1, 65_536), unsaid=64, doc="tokens stored at each position, the likeliest ones")
    temperature: float = key(
        Float(0.01, 1000.0), unsaid=1.0, doc="divides the logits of both models in the divergence"
    )
    weight: float = key(
        Float(1e-6, 1.0),
        unsaid=0.5,
        doc="the share of the divergence, times the temperature squared; the rest is of the cross entropy",
    )


@keyed
class Contrastive:
    """The cross entropy of each query's own positive among those of its group, by the cosine of the angles
    between their vectors. `task = embedding` has it."""

    temperature: float = key(Float(1e-4, 1e3), unsaid=0.05, doc="divides the cosines")
    group: int = key(
        Int(2, 2**19),
        doc="neighboring pairs whose positives are each other's negatives; `micro_batch` is a multiple of "
        "twice as many",
        example="8",
    )


LOSSES: Mapping[str, type[Any]] = {
    "cross_entropy": CrossEntropy,
    "contrastive": Contrastive,
    "dpo": Preference,
    "distillation": Distillation,
}


@keyed
class TrainSpec:
    """The number of steps and their size."""

    steps: int | None = key(
        Int(1),
        unless="epochs",
        doc="optimizer steps, unless `epochs` gives them; `2 epochs` is `epochs = 2`",
        example="1000",
    )
    epochs: Fraction | None = key(
        Optional(Weight()),
        unsaid=None,
        doc="passes over the sequences of all sources, in place of `steps`; the last step may pass their end",
    )
    tokens_per_step: int | None = key(
        Optional(Tokens()),
        unsaid=None,
        doc="tokens per optimizer step, over all ranks; `4 M` is 4_000_000, `4 Mi` 4_194_304",
        example="8192",
    )
    log_every: int = key(Quantity(STEPS, low=1), unsaid=1, doc="steps between log lines")
    loss: CrossEntropy | Contrastive | Preference | Distillation | Extension = key(
        OrExtension(LOSS, Variant(LOSSES, "loss")),
        unsaid=CrossEntropy(label_smoothing=0.0, z_loss=0.0),
        doc="the value of each token; a step's loss is its mean over the tokens that have a label. dpo is of "
        "each pair of answers, contrastive of each query, and their means are over pairs",
    )
    loss_chunks: int | Literal["auto"] = key(
        OrAuto(Int(1)),
        unsaid=1,
        doc="parts of a micro-batch's tokens whose logits exist at a time; "
        "auto is one for each `hidden_size` of a rank's vocabulary, of at least 1_024 tokens",
    )
    ema_decay: float | None = key(
        Optional(Float(0.0, 0.999999)),
        unsaid=None,
        doc="keep a moving average of each trained weight: every step it keeps this share of itself",
        example="0.999",
    )
    metrics: tuple[OwnMetric, ...] = key(
        _METRICS, unsaid=(), doc="numbers of each logged step, computed by the plan's own code"
    )
    callbacks: tuple[OwnCallback, ...] = key(
        _CALLBACKS, unsaid=(), doc="code of the plan's own that reads the run, and may end it"
    )
