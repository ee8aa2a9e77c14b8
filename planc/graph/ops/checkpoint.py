"""Ops that save, resume and export training state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, output, start
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.record import record
from planc.vocab import DType, MeshDim


@record(kw_only=True)
class NameBase(Op):
    op: Literal["checkpoint.base"] = "checkpoint.base"
    stage: ClassVar[Stage] = Stage.RESUME
    summary: ClassVar[str] = (
        "Hashes the model's weight files. Checkpoints name them, and leave out the frozen parameters in them."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS, Resource.CHECKPOINTS),
        finds=(Resource.PIPELINE,),
        writes=(Resource.CHECKPOINTS,),
    )
    path: Annotated[str, output("checkpoint.base")]
    """The model's own directory."""
    parameters: Annotated[tuple[str, ...], DERIVED]


_FROM_CHECKPOINT = Effects(
    reads=(
        Resource.WEIGHTS,
        Resource.OPTIMIZER,
        Resource.SCHEDULE,
        Resource.DATA,
        Resource.HISTORY,
        Resource.CHECKPOINTS,
    ),
    finds=(Resource.PIPELINE, Resource.AVERAGES),
    writes=(
        Resource.WEIGHTS,
        Resource.OPTIMIZER,
        Resource.AVERAGES,
        Resource.DATA,
        Resource.HISTORY,
        Resource.CHECKPOINTS,
        Resource.EVALUATIONS,
        Resource.UPDATE,
    ),
)


@record(kw_only=True)
class ResumeCheckpoint(Op):
    op: Literal["checkpoint.resume"] = "checkpoint.resume"
    stage: ClassVar[Stage] = Stage.RESUME
    summary: ClassVar[str] = "Resumes from the newest checkpoint in the run directory, if there is one."
    touches: ClassVar[Effects] = _FROM_CHECKPOINT
    policy: Annotated[str, output("checkpoint.resume")]


@record(kw_only=True)
class BranchRun(Op):
    op: Literal["checkpoint.branch"] = "checkpoint.branch"
    stage: ClassVar[Stage] = Stage.RESUME
    summary: ClassVar[str] = (
        "Starts from a checkpoint of another run, if this run directory has none to resume. Only reads it."
    )
    touches: ClassVar[Effects] = _FROM_CHECKPOINT
    path: Annotated[str, start("checkpoint.resume", "branched from")]
    """A checkpoint, or a run directory, which means its newest one."""


@record(kw_only=True)
class SettleSave(Op):
    op: Literal["checkpoint.settle"] = "checkpoint.settle"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.CHECKPOINT
    summary: ClassVar[str] = (
        "Agrees on all ranks whether the running save has ended; the last step waits for it. After the first "
        "step, host memory for saves is allocated in a thread."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS, Resource.OPTIMIZER, Resource.CHECKPOINTS),
        finds=(Resource.PIPELINE, Resource.AVERAGES),
        writes=(Resource.CHECKPOINTS,),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class SaveCheckpoint(Op):
    op: Literal["checkpoint.save"] = "checkpoint.save"
    stage: ClassVar[Stage] = Stage.SAVE
    phase: ClassVar[Phase] = Phase.CHECKPOINT
    summary: ClassVar[str] = "Writes all training state into a new step directory, committed by rename."
    touches: ClassVar[Effects] = Effects(
        reads=(
            Resource.WEIGHTS,
            Resource.OPTIMIZER,
            Resource.SCHEDULE,
            Resource.DATA,
            Resource.HISTORY,
            Resource.EVALUATIONS,
            Resource.CHECKPOINTS,
        ),
        finds=(Resource.PIPELINE, Resource.AVERAGES),
        writes=(Resource.CHECKPOINTS,),
    )
    every_steps: Annotated[int | None, output("checkpoint.save_every")]
    every_seconds: Annotated[int | None, output("checkpoint.save_every")] = None
    """Time since the last save began, or the run did, by the clock of rank 0; not with `every_steps`."""
    at_end: Annotated[bool, output("checkpoint.save_last")]
    keep_last: Annotated[int, output("checkpoint.keep_last")]
    mode: Annotated[Literal["sync", "async"], output("checkpoint.mode")] = "sync"
    """async: training continues while a thread writes a copy; `checkpoint.settle` detects its end."""
    when_busy: Annotated[Literal["wait", "skip"] | None, output("checkpoint.mode")] = None
    """The action of an asynchronous save while the previous one is running."""


@record(kw_only=True)
class ExportHf(Op):
    op: Literal["export.hf"] = "export.hf"
    stage: ClassVar[Stage] = Stage.SAVE
    phase: ClassVar[Phase] = Phase.CHECKPOINT
    summary: ClassVar[str] = (
        "Gathers the weights, one at a time, into a directory that transformers can load."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS, Resource.DATA, Resource.CHECKPOINTS),
        finds=(Resource.PIPELINE,),
        writes=(Resource.EXPORT,),
    )
    when: Annotated[Literal["end"], output("checkpoint.export.hf", 'export "hf"')]
    dtype: Annotated[DType, output("checkpoint.export.hf", 'export "hf"')]
    path: Annotated[str, DERIVED]
    """The model's own directory: its config, tokenizer and generation settings are copied."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class ExportAdapter(Op):
    op: Literal["export.adapter"] = "export.adapter"
    stage: ClassVar[Stage] = Stage.SAVE
    phase: ClassVar[Phase] = Phase.CHECKPOINT
    summary: ClassVar[str] = "Gathers the adapters into a directory that peft can load."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.EXPORT,)
    )
    when: Annotated[Literal["end"], output("checkpoint.export.adapter", 'export "adapter"')]
    path: Annotated[str, DERIVED]
    """The model's own directory, which the export names as its base."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class PushExport(Op):
    op: Literal["export.push"] = "export.push"
    stage: ClassVar[Stage] = Stage.SAVE
    phase: ClassVar[Phase] = Phase.CHECKPOINT
    summary: ClassVar[str] = (
        "Rank 0 pushes a finished export to a repository of the Hugging Face Hub, in one commit. A push that "
        "fails is reported, and the run ends as it would without it."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.EXPORT,))
    when: Annotated[Literal["end"], DERIVED]
    export: Annotated[Literal["hf", "adapter"], output("checkpoint.export", "push")]
    repository: Annotated[str, output("checkpoint.export", "push")]
    private: Annotated[bool, output("checkpoint.export", "push")]
    revision: Annotated[str, output("checkpoint.export", "push")]
    """The branch, which the push creates if it is missing."""

    @property
    def target(self) -> str:
        """The repository as text: `org/name (private), branch main`."""
        return f"{self.repository} ({'private' if self.private else 'public'}), branch {self.revision}"
