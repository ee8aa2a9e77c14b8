"""Ops of the plan's own metrics and callbacks, which read a run and change nothing but its end."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.extend.reference import OwnCallback, OwnMetric
from planc.graph.consequence import DERIVED, output
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class LoadReaders(Op):
    op: Literal["readers.load"] = "readers.load"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = (
        "Runs the plan's own files, and tries that their metrics and callbacks write to nothing they read."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.READERS,)
    )
    metrics: Annotated[tuple[OwnMetric, ...], output("train.metrics", "metrics")]
    callbacks: Annotated[tuple[OwnCallback, ...], output("train.callbacks", "callbacks")]


@record(kw_only=True)
class ReadGradients(Op):
    op: Literal["readers.gradients"] = "readers.gradients"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Calls `on_gradients` of callbacks, and in a logged step the metrics, which gather what they ask for."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.WEIGHTS, Resource.CLIPPED_GRADIENTS, Resource.VERDICT, Resource.SCHEDULE),
            Resource.READERS,
        ),
        finds=(Resource.PIPELINE,),
        writes=(Resource.READERS,),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class ReadStep(Op):
    op: Literal["readers.step"] = "readers.step"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Calls `on_step` of callbacks: the optimizer has changed the weights."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.UPDATE, Resource.VERDICT, Resource.SCHEDULE, Resource.READERS),
        writes=(Resource.READERS,),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class ReadEvaluations(Op):
    op: Literal["readers.evaluations"] = "readers.evaluations"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Calls `on_evaluation` of callbacks after a step with evaluations."
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.UPDATE, Resource.EVALUATIONS, Resource.VERDICT, Resource.SCHEDULE),
            Resource.READERS,
        ),
        writes=(Resource.READERS,),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class AgreeToStop(Op):
    op: Literal["readers.agree"] = "readers.agree"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Shares whether a callback of any rank asks to end the run after this step."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.READERS, Resource.HISTORY), writes=(Resource.READERS, Resource.HISTORY)
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """All mesh dims."""
