"""The type of an op: its stage, its effects, its place in the plan."""

from __future__ import annotations

from abc import ABC
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

from planc.record import record
from planc.source import Span
from planc.vocab import GroupDim


class Stage(IntEnum):
    """The order of setup, which every verified graph follows.

    A pipeline is split first, since later ops pass over the modules that a rank lacks.
    Tensor parallelism precedes FSDP because `fully_shard` must see DTensors; activation checkpointing is
    between, since it replaces modules that `fully_shard` then wraps; compilation follows it, to see what is
    recomputed, and precedes FSDP, whose hooks stay outside of compiled code; weights are filled only once
    every parameter has its final shape; the optimizer is built last, since it keeps the parameters it is
    given.
    """

    MESH = 0
    BUILD = 1
    PIPELINE = 2
    TENSOR_PARALLEL = 3
    ACTIVATION_CHECKPOINT = 4
    COMPILE = 5
    FULLY_SHARD = 6
    MATERIALISE = 7
    LOAD = 8
    OPTIMIZER = 9
    DATA = 10
    RESUME = 11
    STEP = 12
    SAVE = 13


class Phase(StrEnum):
    """The parts of a step's time, each of which is that of its ops.

    The reductions by FSDP and over replicas are a part of backward.
    """

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


class Resource(StrEnum):
    """The state of a run, by part: what one op makes and others read.

    Of each there is one record at run time, by `RECORDS` of `planc.runtime.torch.state`.
    """

    MESH = "mesh"
    MODEL = "model"
    """Module structure and parameter shapes, until the weights have values."""
    DOCUMENTS = "documents"
    """The starts of documents in a micro-batch, if tokens attend to their own only."""
    DROPOUT = "dropout"
    """The masks of dropout, if anything is dropped."""
    PIPELINE = "pipeline"
    """A rank's stages, and the micro-batches that are in them."""
    COMPILED = "compiled"
    """The graphs that torch.compile makes."""
    UNITS = "units"
    """FSDP's units."""
    WEIGHTS = "weights"
    """The model with the values of its parameters."""
    OPTIMIZER = "optimizer"
    AVERAGES = "averages"
    """The moving averages of trained weights, if the plan keeps them."""
    SCHEDULE = "schedule"
    OWN_SCHEDULE = "own_schedule"
    """The schedule that the plan's own code computes."""
    SOURCES = "sources"
    """The sources of a mixture."""
    DATA = "data"
    """The training data, and the position in its order."""
    EVALUATION_SETS = "evaluation_sets"
    EXPERT_LOAD = "expert_load"
    """The tokens that each expert got since the last log."""
    BALANCE = "balance"
    """The choices of routers in a micro-batch, and the loss that they give."""
    HISTORY = "history"
    """Facts of earlier steps that later steps and saves need. Empty at the start of a run."""
    CHECKPOINTS = "checkpoints"
    """The saves of this process. None at the start of a run."""
    BATCH = "batch"
    """A rank's micro-batches of the step, in the host's memory."""
    TOKENS = "tokens"
    """The number of labels of the step, over all ranks."""
    LOCAL_BATCH = "local_batch"
    """One micro-batch on the device: a rank's part of every sequence."""
    HIDDEN = "hidden"
    """Hidden states between two stages of a pipeline, and their gradients."""
    IMAGE_ENCODER = "image_encoder"
    """The model's encoder of images, which no step changes."""
    IMAGES = "images"
    """The encoded images of one micro-batch, on the device."""
    LOGITS = "logits"
    OWN_LOSS = "own_loss"
    """The loss that the plan's own code computes, in the place of cross entropy."""
    LOSS = "loss"
    """The loss of one micro-batch, with its graph for backward."""
    STEP_LOSS = "step_loss"
    """A rank's share of the step's loss: the sum over its micro-batches."""
    GRADIENTS = "gradients"
    REPLICA_SUMS = "replica_sums"
    """The sums of gradients over whole replicas that are under way."""
    SYNCED_GRADIENTS = "synced_gradients"
    CLIPPED_GRADIENTS = "clipped_gradients"
    NORM = "norm"
    """The norm of the gradients before clipping."""
    METRICS = "metrics"
    """Loss and stop requests over all ranks, on the device."""
    VERDICT = "verdict"
    """Whether the step is taken, with the numbers that decide it, in the host's memory."""
    UPDATE = "update"
    """The weights are those after this step."""
    EXPORT = "export"
    """Weights in another library's format."""
    EVALUATIONS = "evaluations"
    """The losses on held-out text after this step, and those left for a later run."""
    READERS = "readers"
    """The plan's own metrics and callbacks, with what they remember."""


GIVEN = frozenset({Resource.HISTORY, Resource.CHECKPOINTS})
"""Resources that a run has before its first op."""
CHANGING = GIVEN | {
    *(Resource.WEIGHTS, Resource.OPTIMIZER, Resource.DATA, Resource.HIDDEN, Resource.BALANCE),
    *(Resource.READERS, Resource.AVERAGES),
}
"""Resources that ops change after others have read them. All others are complete once they are read."""

CONSUMED = frozenset({Resource.LOGITS, Resource.LOSS})
"""Resources that are gone once they are read: they hold the memory of a forward."""


@record
class Effects:
    """The resources that an op reads and writes, and the mesh dims it communicates over.

    It reads those of `finds` if the graph has an op that writes them. One that it reads and writes is changed
    in place.
    """

    reads: tuple[Resource, ...] = ()
    finds: tuple[Resource, ...] = ()
    writes: tuple[Resource, ...] = ()
    communicates: tuple[GroupDim, ...] = ()


@record(kw_only=True)
class Op(ABC):
    """One op. Subclasses add `op`, their name as a literal field that tells them apart in JSON.

    `span` is the line of the plan that the op comes from; it takes no part in equality or hashing, so two
    graphs that mean the same are equal however their plans are laid out.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    stage: ClassVar[Stage]
    phase: ClassVar[Phase] = Phase.OTHER
    summary: ClassVar[str]
    touches: ClassVar[Effects] = Effects()
    """The resources that every op of the kind reads and writes."""
    span: Span | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        found: str = getattr(self, "op")  # noqa: B009  # every subclass has it; the base cannot give it a type
        return found

    @property
    def unstable(self) -> str:
        """The experimental or private PyTorch features that this op uses; empty if none."""
        return ""

    @property
    def communicates(self) -> tuple[GroupDim, ...]:
        """The mesh dims that it communicates over: its `over`, unless it says otherwise."""
        over: tuple[GroupDim, ...] = getattr(self, "over", ())
        return over

    def effects(self) -> Effects:
        """Computed from the op's own fields; no pass stores them."""
        return Effects(self.touches.reads, self.touches.finds, self.touches.writes, self.communicates)
