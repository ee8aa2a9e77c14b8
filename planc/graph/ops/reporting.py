"""Ops that observe a run: logs, metrics, replica comparisons, profiles and expert counts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, output
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class Tracker:
    """A tracker of metrics. The fields after `kind` are W&B's, and None for others."""

    kind: Literal["tensorboard", "wandb"]
    mode: Literal["online", "offline"] | None = None
    project: str | None = None
    entity: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        """`wandb(project=tiny, mode=offline)`, without fields that the plan does not set."""
        names = ("project", "mode", "entity", "name")
        given = [f"{name}={value}" for name in names if (value := getattr(self, name)) is not None]
        return f"{self.kind}({', '.join(given)})" if given else self.kind


@record(kw_only=True)
class OpenLog(Op):
    op: Literal["log.open"] = "log.open"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Opens each rank's log, and on rank 0 the trackers."
    per_rank: Annotated[bool, output("logging.per_rank")]
    trackers: Annotated[tuple[Tracker, ...], output("logging.tracker")]


@record(kw_only=True)
class CountExperts(Op):
    op: Literal["experts.count"] = "experts.count"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Counts the tokens that each expert gets in a logged step."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.EXPERT_LOAD,)
    )
    layers: Annotated[tuple[tuple[str, int], ...], DERIVED]
    """The modules of stacked experts with their numbers of experts, in the model's order."""


@record(kw_only=True)
class StartProfile(Op):
    op: Literal["profile.start"] = "profile.start"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, starts tracing every rank."
    first_step: Annotated[int, output("profile")]
    last_step: Annotated[int, output("profile")]
    memory: Annotated[bool, output("profile")]
    """Whether to record CUDA allocations too."""


@record(kw_only=True)
class ReduceMetrics(Op):
    op: Literal["metrics.reduce"] = "metrics.reduce"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Sums the loss over ranks with different tokens, and shares whether any rank got a stop signal. "
        "For a mixture, sums each source's loss and labels, too."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(
            Resource.MESH,
            Resource.BATCH,
            Resource.TOKENS,
            Resource.STEP_LOSS,
            Resource.NORM,
            Resource.CLIPPED_GRADIENTS,
        ),
        finds=(Resource.PIPELINE, Resource.COMPILED),
        writes=(Resource.METRICS, Resource.CLIPPED_GRADIENTS, Resource.VERDICT),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    agree_over: Annotated[tuple[MeshDim, ...], DERIVED] = ()
    """Other mesh dims, whose ranks have the same loss but may not all have got the stop signal."""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return (*self.over, *self.agree_over)


@record(kw_only=True)
class CompareReplicas(Op):
    op: Literal["replicas.compare"] = "replicas.compare"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, compares the bits of every parameter that several ranks hold."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.WEIGHTS, Resource.UPDATE, Resource.HISTORY),
        finds=(Resource.PIPELINE,),
        writes=(Resource.HISTORY,),
    )
    every_steps: Annotated[int, output("guard.replicas_every")]
    over: Annotated[tuple[MeshDim, ...], DERIVED]

    def is_due(self, *, step: int, num_steps: int) -> bool:
        """Whether replicas are compared after a step."""
        return step % self.every_steps == 0


@record(kw_only=True)
class Log(Op):
    op: Literal["log"] = "log"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Writes the step's metrics to the run directory and the display."
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.MESH, Resource.SCHEDULE, Resource.DATA),
            *(Resource.BATCH, Resource.VERDICT, Resource.EVALUATIONS, Resource.HISTORY),
        ),
        finds=(Resource.COMPILED, Resource.EXPERT_LOAD, Resource.BALANCE, Resource.READERS),
    )
    every_steps: Annotated[int, output("train.log_every")]
    """The last step is due as well, one with an evaluation, and one after which a callback ends the run."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """All mesh dims: a line has the most of any rank's memory and time."""

    def is_due(self, *, step: int, num_steps: int) -> bool:
        """Whether a step is logged, even without an evaluation."""
        return step % self.every_steps == 0 or step == num_steps


@record(kw_only=True)
class StopProfile(Op):
    op: Literal["profile.stop"] = "profile.stop"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "After the last step to trace, writes each rank's trace to the run directory."
    last_step: Annotated[int, DERIVED]
