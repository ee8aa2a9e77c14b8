"""A plan with its names settled: one dataclass a block.

Each field says how it is written, its default and what it is; parsing, defaults, `planc show --resolved`
and the documentation all read these fields, so that none of them can drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from planc.plan.data import DataSpec
from planc.plan.elastic import ElasticSpec
from planc.plan.guard import GuardSpec
from planc.plan.hardware import HardwareSpec
from planc.plan.model_source import ModelSource
from planc.plan.observing import LoggingSpec, ProfileSpec
from planc.plan.optimizer import (
    OPTIMIZERS,
    Constant,
    Cosine,
    Group,
    Linear,
    Optimizer,
    Schedule,
    WarmupStableDecay,
)
from planc.plan.pattern import Pattern
from planc.plan.scalars import SECONDS, STEPS, Bool, Choice, Float, Int, Quantity
from planc.plan.scope import OriginStep
from planc.plan.style_actions import StyleAction
from planc.plan.types import Optional, Variant, key, nested
from planc.record import record
from planc.source import Span
from planc.vocab import DType, MeshDim

Action = TypeVar("Action", covariant=True)


@record
class PatternRule(Generic[Action]):
    """`pattern -> action`, or a list of patterns."""

    patterns: tuple[Pattern, ...]
    action: Action
    override: bool
    span: Span
    action_span: Span
    level: int = 0
    """Of the layer that the rule comes from: an override of a higher one wins."""


class Weights(StrEnum):
    RANDOM = "random"
    PRETRAINED = "pretrained"


class AttentionKernel(StrEnum):
    SDPA = "sdpa"
    EAGER = "eager"


@record
class ModelSpec:
    """The model, its weights and its arithmetic."""

    hf: str = key(
        ModelSource(),
        doc="a local folder with a config.json, beside the plan or absolute; "
        'or `hub("org/name", revision = "...")`, a model of the Hugging Face hub at one commit',
        example='"models/tiny-llama"',
    )
    weights: Weights = key(
        Choice(Weights), default=Weights.RANDOM, doc="random initialisation, or safetensors"
    )
    seed: int = key(Int(0), default=0, doc="seeds initialisation; never depends on the mesh")
    dropout: bool = key(
        Bool(),
        default=True,
        doc="false takes dropout, layer drop and jitter of config.json as 0: no two meshes draw alike",
    )
    dtype: DType = key(Choice(DType), default=DType.FLOAT32, doc="of parameters; exceptions: show --layout")
    attention: AttentionKernel = key(
        Choice(AttentionKernel),
        default=AttentionKernel.SDPA,
        doc="sdpa: fused causal kernels; eager: the model's own code, with every score in memory",
    )


class Backend(StrEnum):
    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


@record
class MeshSpec:
    """The device mesh, outermost dim first: dp_replicate, dp_shard, cp, tp."""

    dp_replicate: int = key(
        Int(1), default=1, doc="replicas: of the shards under `fsdp`, else of the whole model"
    )
    dp_shard: int = key(Int(1), default=1, doc="ranks that share parameters, gradients and optimizer state")
    cp: int = key(Int(1), default=1, doc="ranks that share a sequence")
    tp: int = key(Int(1), default=1, doc="ranks that share a layer")
    devices_per_node: int | None = key(
        Optional(Int(1)), default=None, doc="lets the checks see which dims cross nodes"
    )
    backend: Backend = key(
        Choice(Backend), default=Backend.AUTO, doc="auto is nccl where CUDA is available, else gloo"
    )
    timeout: int = key(Quantity(SECONDS, low=1), default=600, doc="how long a collective may take")

    def size(self, mesh_dim: MeshDim) -> int:
        found: int = getattr(self, mesh_dim.value)
        return found

    @property
    def sizes(self) -> dict[MeshDim, int]:
        return {mesh_dim: self.size(mesh_dim) for mesh_dim in MeshDim}

    @property
    def world_size(self) -> int:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def dp_size(self) -> int:
        """Ranks that see different samples."""
        return self.dp_replicate * self.dp_shard


@record
class TensorParallelSpec:
    """Which modules are divided over the mesh dim, and how."""

    on: tuple[MeshDim, ...]
    auto: Span | None
    rules: tuple[PatternRule[StyleAction], ...]
    span: Span


@record
class Unit:
    """Parameters gathered and resharded together: of one match, or of all matches of several patterns."""

    reshard_after_forward: bool = key(Bool(), default=True, doc="free the gathered parameters after forward")


@record
class FsdpSpec:
    """Sharding of parameters, gradients and optimizer state (FSDP2)."""

    on: tuple[MeshDim, ...]
    rules: tuple[PatternRule[Unit], ...]
    span: Span
    replicate_on: MeshDim | None = key(
        Optional(Choice(MeshDim)), default=None, doc="the mesh dim of replicas of the shards (HSDP)"
    )
    param_dtype: DType | None = key(
        Optional(Choice(DType)), default=None, doc="the dtype of compute and gathers"
    )
    reduce_dtype: DType | None = key(
        Optional(Choice(DType)), default=None, doc="the dtype gradients are summed in"
    )
    cpu_offload: bool = key(
        Bool(), default=False, doc="parameters, gradients and optimizer state lie in the host's memory"
    )


class Rotate(StrEnum):
    RING = "ring"
    ALLGATHER = "allgather"
    ULYSSES = "ulysses"


class LoadBalancer(StrEnum):
    HEADTAIL = "headtail"
    NONE = "none"


@record
class BufferShard:
    tensor_dim: int = key(Int(0, 7), doc="the tensor dimension that is divided", positional=True)


@record
class ContextParallelSpec:
    """Division of every sequence over the mesh dim."""

    on: tuple[MeshDim, ...]
    rules: tuple[PatternRule[BufferShard], ...]
    span: Span
    rotate: Rotate = key(Choice(Rotate), default=Rotate.RING, doc="how keys and values reach every rank")
    load_balancer: LoadBalancer = key(
        Choice(LoadBalancer), default=LoadBalancer.HEADTAIL, doc="which positions a rank holds"
    )


@record
class FullCheckpointing:
    """Recompute the whole module in backward."""


@record
class SelectiveCheckpointing:
    """Keep the outputs of attention, of every second matmul and of reduce-scatters; recompute the rest."""


@record
class NoCheckpointing:
    """Keep every activation."""


@record
class ActivationCheckpointSpec:
    """Which modules recompute their activations in backward."""

    rules: tuple[PatternRule[FullCheckpointing | SelectiveCheckpointing | NoCheckpointing], ...]
    span: Span


class InductorMode(StrEnum):
    DEFAULT = "default"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max_autotune_no_cudagraphs"


@record
class Inductor:
    """Kernels that fuse what stands between matmuls; on a processor they take a C++ compiler."""

    mode: InductorMode = key(
        Choice(InductorMode), default=InductorMode.DEFAULT, doc="how long kernels are searched for"
    )


@record
class AotEager:
    """Forward and backward traced and run op by op: to find out which part of compilation is at fault."""


@record
class Eager:
    """Forward traced and run op by op: to find out which part of compilation is at fault."""


@record
class Region:
    """Compile the module as one."""


@record
class NoRegion:
    """Run the module as it is."""


@record
class CompileSpec:
    """Which modules torch.compile makes code of, and how."""

    rules: tuple[PatternRule[Region | NoRegion], ...]
    span: Span
    backend: Inductor | AotEager | Eager = key(
        Variant({"inductor": Inductor, "aot_eager": AotEager, "eager": Eager}),
        default=Inductor(mode=InductorMode.DEFAULT),
        doc="what runs the traced code",
    )
    fullgraph: bool = key(Bool(), default=True, doc="a module that cannot be traced as a whole ends the run")
    dynamic: bool = key(Bool(), default=False, doc="code for all shapes, not for the batch's alone")


@record
class OptimizerSpec:
    """The optimizer, its schedule and its parameter groups; patterns name parameters."""

    rules: tuple[PatternRule[Group], ...]
    span: Span
    kind: Optimizer = key(Variant(OPTIMIZERS), doc="the optimizer", example="adamw(lr = 3e-4)")
    clip_grad_norm: float | None = key(
        Optional(Float(1e-12)), default=None, doc="largest global gradient norm"
    )
    schedule: Schedule = key(
        Variant({"cosine": Cosine, "linear": Linear, "constant": Constant, "wsd": WarmupStableDecay}),
        default=Constant(warmup=0),
        doc="the learning rate over the steps",
    )


class WhenBusy(StrEnum):
    WAIT = "wait"
    SKIP = "skip"


@record
class SyncSave:
    """Training waits for a save."""


@record
class AsyncSave:
    """Training waits while its state is copied; a thread writes the copy while training goes on."""

    when_busy: WhenBusy = key(
        Choice(WhenBusy), default=WhenBusy.WAIT, doc="what a save does that is due while one is under way"
    )


class Resume(StrEnum):
    LATEST = "latest"
    NONE = "none"


class ExportTime(StrEnum):
    END = "end"


@record
class HfExport:
    """The weights in a folder that transformers loads: `export/hf` in the run's folder."""

    when: ExportTime = key(Choice(ExportTime), default=ExportTime.END, doc="after the last step")
    dtype: DType | None = key(
        Optional(Choice(DType)), default=None, doc="the dtype of the written weights; none is model.dtype"
    )


@record
class CheckpointSpec:
    """When training state is saved, how much is kept, where a run starts from."""

    save_every: int | None = key(Optional(Quantity(STEPS, low=1)), default=None, doc="steps between saves")
    save_last: bool = key(Bool(), default=True, doc="save after the last step too")
    keep_last: int = key(Int(1), default=3, doc="how many checkpoints stay")
    mode: SyncSave | AsyncSave = key(
        Variant({"sync": SyncSave, "async": AsyncSave}),
        default=SyncSave(),
        doc="whether training waits for a save, or only for a copy to be made",
    )
    resume: Resume = key(
        Choice(Resume), default=Resume.LATEST, doc="latest: continue where the run's folder stops"
    )
    export: Mapping[str, HfExport] = nested({"hf": HfExport}, doc="the model in the form of another library")


@record
class TrainSpec:
    """How long, and in how large steps."""

    steps: int = key(Int(1), doc="optimizer steps", example="1000")
    tokens_per_step: int | None = key(
        Optional(Int(1)), default=None, doc="tokens of one optimizer step over all ranks"
    )
    log_every: int = key(Quantity(STEPS, low=1), default=1, doc="steps between log lines")


@record
class Expectation:
    """`subject operator value`, proven by the checks."""

    subject: str
    operator: str
    value: int | float
    subject_span: Span
    span: Span


@record
class Plan:
    """A resolved plan. `origins` and `spans` are keyed by dotted path (`mesh.tp`)."""

    name: str
    model: ModelSpec
    mesh: MeshSpec
    data: DataSpec
    optimizer: OptimizerSpec
    train: TrainSpec
    tensor_parallel: TensorParallelSpec | None
    fsdp: FsdpSpec | None
    context_parallel: ContextParallelSpec | None
    activation_checkpoint: ActivationCheckpointSpec | None
    compile: CompileSpec | None
    checkpoint: CheckpointSpec | None
    hardware: HardwareSpec | None
    logging: LoggingSpec | None
    profile: ProfileSpec | None
    elastic: ElasticSpec | None
    guard: GuardSpec | None
    expectations: tuple[Expectation, ...]
    origins: Mapping[str, tuple[OriginStep, ...]]
    spans: Mapping[str, Span]

    def span(self, path: str) -> Span:
        """Where `mesh.tp` is written; for a default, where its block is, or the file's start."""
        while path not in self.spans:
            path = path.rpartition(".")[0]
        return self.spans[path]
