"""The type of an op: its stage, its effects, its place in the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

from planc.record import record
from planc.source import Span
from planc.vocab import MeshDim


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


class Resource(StrEnum):
    """The resources that ops read and write."""

    MESH = "mesh"
    MODEL = "model"
    """Module structure and parameter shapes."""
    WEIGHTS = "weights"
    """Parameter values."""
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"
    SOURCE = "source"
    """One source of a mixture."""
    DATA = "data"
    """The position in the sample order."""
    EVALUATION = "evaluation"
    """Evaluation data."""
    BATCH = "batch"
    LOCAL_BATCH = "local_batch"
    HIDDEN = "hidden"
    """Hidden states between two stages of a pipeline, or their gradients."""
    LOGITS = "logits"
    LOSS = "loss"
    GRADIENTS = "gradients"
    SYNCED_GRADIENTS = "synced_gradients"
    CLIPPED_GRADIENTS = "clipped_gradients"
    METRICS = "metrics"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    """Weights in another library's format."""


@record
class Effects:
    """The resources that an op reads and writes, and the mesh dims it communicates over."""

    reads: tuple[Resource, ...] = ()
    writes: tuple[Resource, ...] = ()
    communicates: tuple[MeshDim, ...] = ()


@record(kw_only=True)
class Op(ABC):
    """One op. Subclasses add `op`, their name as a literal field that tells them apart in JSON.

    `span` is the line of the plan that the op comes from; it takes no part in equality or hashing, so two
    graphs that mean the same are equal however their plans are laid out.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    stage: ClassVar[Stage]
    summary: ClassVar[str]
    span: Span | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        found: str = getattr(self, "op")  # noqa: B009  # every subclass has it; the base cannot give it a type
        return found

    @property
    def unstable(self) -> str:
        """The experimental or private PyTorch features that this op uses; empty if none."""
        return ""

    @abstractmethod
    def effects(self) -> Effects:
        """Computed from the op's own fields; no pass stores them."""
