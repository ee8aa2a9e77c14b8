"""Ops that balance the loads of experts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, derived_sums, numerics
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SwitchLoss:
    """The loss of Switch Transformers, over sets of `num_sequences` sequences of the step's order."""

    coefficient: float
    num_sequences: int
    pooled: bool

    def __str__(self) -> str:
        """`switch(coefficient=0.01, sequences=1)`."""
        pooled = ", pooled" if self.pooled else ""
        return f"switch(coefficient={self.coefficient}, sequences={self.num_sequences}{pooled})"


@record(kw_only=True)
class BalanceExperts(Op):
    op: Literal["experts.balance"] = "experts.balance"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = (
        "Adds the gradient of a loss to the logits of routers, where experts are called with their choices."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.BALANCE,)
    )
    layers: Annotated[tuple[tuple[str, str, int, str], ...], DERIVED]
    """Each router, the experts that it chooses from, their number, and its bias, in the model's order; an
    empty name for a router whose bias `experts.bias` does not move."""
    loss: Annotated[SwitchLoss | None, numerics("balance.loss")]
    z_loss: Annotated[float | None, numerics("balance.z_loss")]
    num_sequences: Annotated[int, DERIVED]
    """The sequences of a step."""


@record(kw_only=True)
class SumRoutes(Op):
    op: Literal["experts.sum"] = "experts.sum"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.FORWARD
    summary: ClassVar[str] = (
        "Sums each expert's tokens over ranks with parts of the same set of tokens, which gives the loss."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.MESH, Resource.BALANCE), writes=(Resource.BALANCE,))
    over: Annotated[tuple[MeshDim, ...], derived_sums("balance.loss", "routed tokens")]


@record(kw_only=True)
class MoveBiases(Op):
    op: Literal["experts.bias"] = "experts.bias"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.OPTIMIZER
    summary: ClassVar[str] = (
        "Sums each expert's tokens of the step over ranks, and moves its bias up or down by one update, "
        "towards an equal load."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.BALANCE, Resource.WEIGHTS, Resource.VERDICT),
        writes=(Resource.WEIGHTS,),
    )
    update: Annotated[float, numerics("balance.loss")]
    over: Annotated[tuple[MeshDim, ...], DERIVED]
