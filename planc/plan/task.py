"""The tasks that a model can be trained on: what is a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from planc.plan.scalars import Float
from planc.plan.types import key
from planc.record import record
from planc.vocab import Task


@record
class CausalLm:
    """The label of each token is the next token."""

    task: ClassVar[Task] = Task.CAUSAL_LM


@record
class MaskedLm:
    """Tokens are chosen again each time a sequence is seen, and are their own labels.

    Special tokens are never chosen. Chosen tokens that nothing replaces stay as they are.
    """

    task: ClassVar[Task] = Task.MASKED_LM
    probability: float = key(Float(1e-6, 1.0), default=0.15, doc="of each token to be chosen")
    mask_replace: float = key(
        Float(0.0, 1.0),
        default=0.8,
        doc="share of the chosen tokens that the tokenizer's mask token replaces",
    )
    random_replace: float = key(
        Float(0.0, 1.0), default=0.1, doc="share of the chosen tokens that other tokens replace, drawn evenly"
    )


AnyTask = CausalLm | MaskedLm

TASKS: Mapping[str, type[AnyTask]] = {str(kind.task): kind for kind in (CausalLm, MaskedLm)}
