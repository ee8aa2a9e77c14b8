"""The trained part of a model: parameters that are not frozen, and adapters."""

from __future__ import annotations

from enum import StrEnum

from planc.plan.keys import key, keyed
from planc.plan.pattern import PatternRule
from planc.plan.scalars import Bool, Choice, Float, Int, Path
from planc.plan.style_actions import Frozen, Trained
from planc.plan.types import Optional, Variant
from planc.record import record
from planc.source import Span
from planc.vocab import DType


@keyed
class Lora:
    """Low-rank adapters (LoRA): `output + scale * B(A(dropout(input)))`.

    A is initialized as a linear layer of PyTorch, B with zeros. With `dora` (DoRA) the layer computes with
    `W + scale * B A`, whose rows are scaled to trained lengths: first, those of W.
    """

    rank: int = key(Int(1), doc="rows of A, and columns of B", example="16")
    alpha: float = key(Float(0.0), doc="the scale is alpha / rank", example="32")
    dropout: float = key(Float(0.0, 0.999999), unsaid=0.0, doc="of A's input, with equal masks on every mesh")
    rslora: bool = key(Bool(), unsaid=False, doc="the scale is alpha / sqrt(rank)")
    dora: bool = key(Bool(), unsaid=False, doc="train the length of each row of the weight as well")


ADAPTERS = {"lora": Lora}


class AdaptedBase(StrEnum):
    MODEL = "model"
    NF4 = "nf4"


@record
class Adapted:
    """Add an adapter to the linear layer, or to each of the module's routed experts."""


@record
class NotAdapted:
    """Leave the module without an adapter."""


@record
class FreezeSpec:
    """The parameters that training keeps as they are. A pattern names parameters, or modules as a whole."""

    rules: tuple[PatternRule[Frozen | Trained], ...]
    span: Span


@keyed
class AdapterSpec:
    """Small weights, trained instead of the model's own, which are frozen unless `freeze` trains some."""

    rules: tuple[PatternRule[Adapted | NotAdapted], ...]
    span: Span
    kind: Lora = key(Variant(ADAPTERS, "adapter"), doc="the adapter", example="lora(rank = 16, alpha = 32)")
    start: str | None = key(
        Optional(Path()),
        unsaid=None,
        doc="directory of peft adapters to train further; none draws new ones",
        example='"runs/first/export/adapter"',
    )
    base: AdaptedBase = key(
        Choice(AdaptedBase),
        unsaid=AdaptedBase.MODEL,
        doc="model: frozen weights are in `model.dtype`. nf4: those of linear layers are in 4 bits, with a "
        "float32 scale for each block of 64",
    )
    dtype: DType | None = key(
        Optional(Choice(DType)), unsaid=None, doc="of the adapters as they are stored; none is `model.dtype`"
    )
