"""The `balance` block: what keeps the loads of experts equal."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from planc.plan.keys import key, keyed
from planc.plan.scalars import Choice, Float
from planc.plan.types import Optional, OrAuto, Variant

if TYPE_CHECKING:
    from planc.inventory.schema import Inventory
    from planc.plan.spec import Plan


class Over(StrEnum):
    """The set of tokens whose choices should be equal among experts."""

    SEQUENCE = "sequence"
    MICRO_BATCH = "micro_batch"
    STEP = "step"


class Layers(StrEnum):
    """Whether each router has a loss of its own, or all have one."""

    EACH = "each"
    POOLED = "pooled"


@keyed
class Switch:
    """Add experts x sum over experts of (share of the tokens x mean probability), as Switch Transformers.

    Probabilities are the softmax of a router's logits. Tokens without a label do not count. The loss is the
    mean over the step's sets of tokens, and the sum over routers unless they are pooled.
    """

    coefficient: float = key(Float(0.0), unsaid=0.01, doc="weight of the loss", example="0.01")
    over: Over = key(
        Choice(Over),
        unsaid=Over.SEQUENCE,
        doc="the set of tokens to balance: a sequence, `data.micro_batch` sequences, or all of a step",
    )
    layers: Layers = key(
        Choice(Layers),
        unsaid=Layers.EACH,
        doc="each: every router has its own loss; pooled: one of all routers' tokens, as transformers has it",
    )


@keyed
class Bias:
    """Move what a router adds to scores to choose experts, once a step, as DeepSeek-V3; adds no loss.

    The bias of an expert rises by `update` if fewer of the step's tokens chose it than chose experts on
    average, and falls by it if more did. Tokens without a label do not count.
    """

    update: float = key(
        Float(1e-12), unsaid=1e-3, doc="step of a bias, up or down, in each step", example="1e-3"
    )


Loss = Switch
AUTO = "auto"


@keyed
class BalanceSpec:
    """Losses that keep the loads of experts equal, in addition to the cross-entropy loss."""

    loss: Loss | Bias | Literal["auto"] | None = key(
        Optional(OrAuto(Variant({"switch": Switch, "bias": Bias}, "balance loss"))),
        unsaid=AUTO,
        doc="the loss to add, or `bias` for updates of the routers' biases; auto is what the model's "
        "config.json enables with `output_router_logits`",
    )
    z_loss: float | None = key(
        Optional(Float(1e-12)),
        unsaid=None,
        doc="weight of the mean square of the logsumexp of each router's logits, summed over routers",
        example="1e-3",
    )


def balance_loss(plan: Plan, inventory: Inventory) -> Loss | None:
    """The loss that a plan adds: its own, or that of the model's config.json."""
    written = plan.balance.loss if plan.balance is not None else AUTO
    if isinstance(written, Bias):
        return None
    if written != AUTO:
        return written  # type: ignore[return-value]  # mypy does not narrow a union by a literal's value
    if inventory.router_loss is None:
        return None
    return Switch(coefficient=inventory.router_loss, over=Over.MICRO_BATCH, layers=Layers.POOLED)


def bias_update(plan: Plan) -> float | None:
    """The step of the routers' biases, if the plan moves them."""
    written = plan.balance.loss if plan.balance is not None else None
    return written.update if isinstance(written, Bias) else None


def is_balanced(plan: Plan, inventory: Inventory) -> bool:
    """Whether a plan adds anything to the loss of a model with experts, or moves biases of its routers."""
    return (
        balance_loss(plan, inventory) is not None
        or bias_update(plan) is not None
        or (plan.balance is not None and plan.balance.z_loss is not None)
    )
