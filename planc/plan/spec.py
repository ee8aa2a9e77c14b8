"""A resolved plan: one dataclass per block.

Each field declares how it is written, its default and its documentation. Parsing, defaults,
`planc show --resolved` and the reference all read these fields, so they can't drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from planc.extend.reference import Extension
from planc.plan.adapter import AdapterSpec as AdapterSpec
from planc.plan.adapter import FreezeSpec as FreezeSpec
from planc.plan.auto import Auto
from planc.plan.balance import BalanceSpec
from planc.plan.checkpoint import CheckpointSpec
from planc.plan.compile_backends import COMPILE_BACKENDS, AotEager, Eager, Inductor, InductorMode
from planc.plan.data import DataSpec
from planc.plan.dispatch import AllExperts, Dispatch
from planc.plan.elastic import ElasticSpec
from planc.plan.extensions import MODEL_CLASS
from planc.plan.hardware import HardwareSpec
from planc.plan.keys import key, keyed, unsaid
from planc.plan.mesh import MeshSpec
from planc.plan.model_source import ModelSource, NamePart
from planc.plan.observing import GuardSpec, LoggingSpec, ProfileSpec
from planc.plan.optimizer import Constant, Group, Optimizer, Schedule
from planc.plan.own_optimizer import OPTIMIZER_KIND, SCHEDULE_KIND
from planc.plan.pattern import PatternRule as PatternRule
from planc.plan.pipeline_schedule import SCHEDULES as PIPELINE_SCHEDULES
from planc.plan.pipeline_schedule import Interleaved, OneFOneB, PipelineSchedule, StageOf
from planc.plan.rope import ROPES, RopeScaling
from planc.plan.scalars import Bool, Choice, Float, Int
from planc.plan.scope import OriginStep
from planc.plan.style_actions import BufferShard, NoRegion, Region, StyleAction
from planc.plan.task import TASKS, AnyTask, CausalLm
from planc.plan.train import CrossEntropy, TrainSpec
from planc.plan.types import Optional, Variant
from planc.record import record
from planc.source import Span
from planc.vocab import DType, MeshDim


class Weights(StrEnum):
    RANDOM = "random"
    PRETRAINED = "pretrained"


class AttentionKernel(StrEnum):
    SDPA = "sdpa"
    EAGER = "eager"


@keyed
class ModelSpec:
    """The model, its weights and its arithmetic."""

    hf: str = key(
        ModelSource(),
        doc="a directory with a config.json, absolute or relative to the plan; "
        'or `hub("org/name", revision = "...")`, a Hugging Face Hub model at one commit',
        example='"models/tiny-llama"',
    )
    architecture: Extension | None = key(
        Optional(MODEL_CLASS),
        unsaid=None,
        doc="a model class of the plan's own code; none is the class in transformers that config.json names",
    )
    task: AnyTask = key(
        Variant(TASKS, "task"),
        unsaid=CausalLm(),
        doc="what is a label: causal_lm, the next token; masked_lm, hidden tokens of models whose tokens see "
        "all others; sequence_classification and token_classification, classes; embedding, another text",
    )
    weights: Weights = key(Choice(Weights), unsaid=Weights.RANDOM, doc="random, or from safetensors")
    strip: str | None = key(
        Optional(NamePart()), unsaid=None, doc="removed from names of stored tensors", example='"module."'
    )
    seed: int = key(Int(0), unsaid=0, doc="seeds initial weights and dropout; the same on every mesh")
    dropout: bool = key(
        Bool(),
        unsaid=True,
        doc="config.json's, with equal masks on every mesh; false sets it, layer drop and router jitter to 0",
    )
    dtype: DType = key(
        Choice(DType), unsaid=DType.FLOAT32, doc="of parameters; `show --layout` lists exceptions"
    )
    attention: AttentionKernel = key(
        Choice(AttentionKernel),
        unsaid=AttentionKernel.SDPA,
        doc="sdpa: fused causal kernels; eager: the model's own code, with all scores in memory",
    )
    rope: RopeScaling | None = key(
        Optional(Variant(ROPES, "scaling of rotary embeddings")),
        unsaid=None,
        doc="scales rotary embeddings for longer sequences, in place of config.json's; exports state it",
        example="yarn(factor = 4)",
    )


@keyed
class PipelineSpec:
    """The model's layers in stages, each on its own ranks; micro-batches pass through all of them.

    Without rules the layers are balanced. A step has as many micro-batches as it accumulates.
    """

    on: tuple[MeshDim, ...]
    rules: tuple[PatternRule[StageOf], ...]
    span: Span
    schedule: PipelineSchedule = key(
        Variant(PIPELINE_SCHEDULES, "pipeline schedule"),
        unsaid=OneFOneB(),
        doc="the order of forwards and backwards",
    )

    @property
    def stages_per_rank(self) -> int:
        return self.schedule.stages_per_rank if isinstance(self.schedule, Interleaved) else 1


@record
class TensorParallelSpec:
    """The modules that are sharded over the mesh dim, and their styles."""

    on: tuple[MeshDim, ...]
    auto: Auto | None
    rules: tuple[PatternRule[StyleAction], ...]
    span: Span


@keyed
class ExpertParallelSpec:
    """Experts on different ranks, which send each other tokens; FSDP shards each rank's own over the rest."""

    on: tuple[MeshDim, ...]
    auto: AllExperts | None
    rules: tuple[PatternRule[Dispatch], ...]
    span: Span
    size: int = key(
        Int(1),
        doc="neighboring ranks that hold different experts: a factor of the mesh dims",
        example="8",
    )
    capacity: float | None = key(
        Optional(Float(1e-12)),
        unsaid=None,
        doc="of each sequence, an expert takes at most this many times an equal share of tokens, the first "
        "ones; the others pass without it. None drops no token",
        example="1.25",
    )

    @property
    def on_shards(self) -> bool:
        """Whether the ranks of tp send each other tokens of their shards of sequences."""
        return MeshDim.TP in self.on


@keyed
class Unit:
    """Parameters that are gathered and resharded together: of one match, or of all matches of a list."""

    reshard_after_forward: bool = key(Bool(), unsaid=True, doc="free the gathered parameters after forward")


class ReduceEvery(StrEnum):
    STEP = "step"
    MICRO_BATCH = "micro_batch"


@keyed
class FsdpSpec:
    """Sharding of optimizer state, and of gradients and parameters as far as their keys let it (FSDP2)."""

    on: tuple[MeshDim, ...]
    rules: tuple[PatternRule[Unit], ...]
    span: Span
    replicate_on: MeshDim | None = key(Optional(Choice(MeshDim)), unsaid=None, doc="replicates shards (HSDP)")
    param_dtype: DType | None = key(Optional(Choice(DType)), unsaid=None, doc="for compute and gathers")
    reduce_dtype: DType | None = key(Optional(Choice(DType)), unsaid=None, doc="for gradient reduction")
    cpu_offload: bool = key(
        Bool(), unsaid=False, doc="keep parameters, gradients and optimizer state in host memory"
    )
    prefetch: int = key(Int(1, 16), unsaid=1, doc="units to gather ahead, in forward and in backward")
    reshard_after_backward: bool = key(
        Bool(),
        unsaid=True,
        doc="false: parameters are gathered once a step and stay whole until its last backward "
        "(ZeRO-1; ZeRO-2 with `reduce_every = micro_batch`)",
    )
    reduce_every: ReduceEvery = key(
        Choice(ReduceEvery),
        unsaid=ReduceEvery.STEP,
        doc="step: one reduce-scatter, whole gradients until then; micro_batch: gradients are kept as shards",
    )

    @classmethod
    def on_dp_shard(cls, rules: tuple[PatternRule[Unit], ...], span: Span) -> FsdpSpec:
        """A block `fsdp on dp_shard` that writes its rules alone."""
        return cls(**unsaid(cls), on=(MeshDim.DP_SHARD,), rules=rules, span=span)


class Rotate(StrEnum):
    RING = "ring"
    ALLGATHER = "allgather"
    ULYSSES = "ulysses"


class LoadBalancer(StrEnum):
    HEADTAIL = "headtail"
    NONE = "none"


@keyed
class ContextParallelSpec:
    """Sharding of every sequence over the mesh dim."""

    on: tuple[MeshDim, ...]
    rules: tuple[PatternRule[BufferShard], ...]
    span: Span
    rotate: Rotate = key(Choice(Rotate), unsaid=Rotate.RING, doc="how keys and values reach every rank")
    load_balancer: LoadBalancer = key(
        Choice(LoadBalancer), unsaid=LoadBalancer.HEADTAIL, doc="which positions each rank holds"
    )


@record
class FullCheckpointing:
    """Recompute the whole module in backward."""


@record
class SelectiveCheckpointing:
    """Keep the outputs of attention, of every second matmul and of reduce-scatters; recompute the rest."""


@record
class OffloadCheckpointing:
    """Recompute the whole module in backward, from an input that waits in the host's memory."""


@record
class NoCheckpointing:
    """Keep every activation."""


Checkpointing: TypeAlias = FullCheckpointing | SelectiveCheckpointing | OffloadCheckpointing | NoCheckpointing


@record
class ActivationCheckpointSpec:
    """The modules that recompute their activations in backward."""

    rules: tuple[PatternRule[Checkpointing], ...]
    span: Span


@keyed
class CompileSpec:
    """The modules that torch.compile compiles, and its options."""

    rules: tuple[PatternRule[Region | NoRegion], ...]
    span: Span
    backend: Inductor | AotEager | Eager = key(
        Variant(COMPILE_BACKENDS, "compile backend"),
        unsaid=Inductor(mode=InductorMode.DEFAULT),
        doc="the torch.compile backend",
    )
    fullgraph: bool = key(Bool(), unsaid=True, doc="a graph break ends the run; else a run lists its breaks")
    dynamic: bool = key(Bool(), unsaid=False, doc="compile for dynamic shapes")
    loss: bool = key(
        Bool(),
        unsaid=True,
        doc="compile the cross entropy too: one kernel forward, one backward, and no logits in float32",
    )


@keyed
class OptimizerSpec:
    """The optimizer, its schedule and its parameter groups; patterns name parameters or modules."""

    rules: tuple[PatternRule[Group], ...]
    span: Span
    kind: Optimizer = key(OPTIMIZER_KIND, doc="the optimizer", example="adamw(lr = 3e-4)")
    clip_grad_norm: float | None = key(
        Optional(Float(1e-12)), unsaid=None, doc="maximum global gradient norm", example="1.0"
    )
    schedule: Schedule = key(
        SCHEDULE_KIND,
        unsaid=Constant(warmup=0),
        doc="the learning rate schedule",
    )


@record
class Expectation:
    """`subject operator value`, which the checks prove."""

    subject: str
    operator: str
    value: int | float
    subject_span: Span
    span: Span


@record
class Waiver:
    """The expectations of one fact that a launch waived, and the place that waived them."""

    expectations: tuple[Expectation, ...]
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
    pipeline: PipelineSpec | None
    tensor_parallel: TensorParallelSpec | None
    expert_parallel: ExpertParallelSpec | None
    fsdp: FsdpSpec | None
    context_parallel: ContextParallelSpec | None
    activation_checkpoint: ActivationCheckpointSpec | None
    compile: CompileSpec | None
    freeze: FreezeSpec | None
    adapter: AdapterSpec | None
    checkpoint: CheckpointSpec | None
    hardware: HardwareSpec | None
    logging: LoggingSpec | None
    profile: ProfileSpec | None
    elastic: ElasticSpec | None
    guard: GuardSpec | None
    balance: BalanceSpec | None
    expectations: tuple[Expectation, ...]
    origins: Mapping[str, tuple[OriginStep, ...]]
    spans: Mapping[str, Span]
    extensions: tuple[str, ...] = ()
    """The plan's own Python files, relative to its directory."""
    waived: tuple[Waiver, ...] = ()
    """The expectations that a launch left out."""
    num_sequences: int | None = None
    """The sequences of the training data, for a plan whose steps were computed from them."""

    @property
    def compiles_loss(self) -> bool:
        """Whether torch.compile gets the loss: cross entropy, if the plan does not say otherwise."""
        loss = self.train.loss
        is_plain = isinstance(loss, CrossEntropy) and not loss.has_terms
        return self.compile is not None and self.compile.loss and is_plain

    def span(self, path: str) -> Span:
        """The span of `mesh.tp`; for a default, the span of its block, or the start of the file."""
        while path not in self.spans:
            path = path.rpartition(".")[0]
        return self.spans[path]
