"""Ops that build the model on a mesh and fill its weights."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, ClassVar, Literal, TypeAlias

from planc.devices.attention_kernels import AttentionCall
from planc.extend.reference import Extension
from planc.graph.consequence import DERIVED, identity, layout, numerics, output, start
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import (
    DOWN,
    MAGNITUDE,
    NO_HEAD,
    UP,
    Classes,
    DropoutDim,
    DType,
    MeshDim,
    Placement,
    Task,
    parent_of,
)


@record(kw_only=True)
class InitMesh(Op):
    op: Literal["mesh.init"] = "mesh.init"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Starts the process group and arranges the ranks in a device mesh."
    touches: ClassVar[Effects] = Effects(writes=(Resource.MESH,))
    sizes: Annotated[tuple[tuple[MeshDim, int], ...], layout("mesh", is_in_sums=True)]
    """Every mesh dim with its size, outermost first."""
    backend: Annotated[str, output("mesh.backend")]
    timeout_seconds: Annotated[int, output("mesh.timeout", "mesh.timeout (s)")]

    @property
    def device(self) -> str:
        """The kind of device that the plan is for, by PyTorch's name: `auto` means one with CUDA."""
        return "cpu" if self.backend == "gloo" else "cuda"

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return tuple((dim for dim, _ in self.sizes))


@record(kw_only=True)
class BuildModel(Op):
    op: Literal["model.build"] = "model.build"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = "Builds the model on the meta device: modules and shapes without memory."
    touches: ClassVar[Effects] = Effects(writes=(Resource.MODEL,))
    path: Annotated[str, output("model.hf")]
    """The model directory as the plan names it."""
    config_digest: Annotated[str, identity("model.hf", "model")]
    """SHA-256 of its config.json."""
    architecture: Annotated[str, identity("model.hf", "model")]
    dtype: Annotated[DType, identity("model.dtype")]
    own_dtypes: Annotated[tuple[tuple[str, DType], ...], numerics("model.dtype", "tensors in another dtype")]
    """Parameters and buffers that the model's code builds in another dtype, by name."""
    kept_in_float32: Annotated[tuple[str, ...], numerics("model.dtype", "tensors in another dtype")]
    """Parameters and buffers that are float32, random or loaded, because `from_pretrained` keeps them so; the
    model's code builds them in `dtype`."""
    zeroed: Annotated[tuple[str, ...], numerics("model.dropout", "fields of config.json set to 0")]
    """Fields of config.json that are set to 0 because training would draw random numbers for them."""
    rope: Annotated[tuple[tuple[str, str | int | float], ...], numerics("model.rope")] = ()
    """The plan's values in place of config.json's `rope_parameters`, by transformers' names."""
    rope_positions: Annotated[int | None, numerics("data.sequence_length", "rope's positions")] = None
    """The length of sequences, if rotary embeddings depend on it: they are computed for it once."""

    @property
    def other_dtypes(self) -> dict[str, DType]:
        """The dtype of every parameter and buffer with another dtype than `dtype`."""
        return {**dict(self.own_dtypes), **dict.fromkeys(self.kept_in_float32, DType.FLOAT32)}

    @property
    def classes(self) -> Classes | None:
        """The head that replaces the one of config.json's class; None for its own."""
        return None


@record(kw_only=True)
class BuildOwnModel(BuildModel):
    op: Literal["model.build_own"] = "model.build_own"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Builds the model class of the plan's own code on the meta device, as `model.build`."
    )
    own: Annotated[Extension, identity("model.architecture")]


@record(kw_only=True)
class BuildClassifier(BuildModel):
    op: Literal["model.build_classifier"] = "model.build_classifier"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Builds the classifier of a pretrained model that has none on the meta device, as `model.build`."
    )
    labels: Annotated[int, identity("model.task", "classes")]
    task: Annotated[Task, identity("model.task")] = Task.SEQUENCE_CLASSIFICATION

    @property
    def classes(self) -> Classes:
        return Classes(self.task, self.labels)


@record(kw_only=True)
class BuildEmbedder(BuildModel):
    op: Literal["model.build_embedder"] = "model.build_embedder"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Builds a model without a head, whichever config.json names, on the meta device, as `model.build`."
    )

    @property
    def classes(self) -> Classes:
        return NO_HEAD


@record(kw_only=True)
class AttachAdapters(Op):
    op: Literal["adapters.attach"] = "adapters.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Adds to each layer's output, or each expert's, what two small linear layers make of its input."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
    modules: Annotated[tuple[str, ...], identity("adapter")]
    rank: Annotated[int, identity("adapter.kind.rank", "adapter rank")]
    alpha: Annotated[float, numerics("adapter.kind.alpha", "adapter alpha")]
    rslora: Annotated[bool, numerics("adapter.kind.rslora", "adapter rslora")]
    dropout: Annotated[float, numerics("adapter.kind.dropout", "adapter dropout")]
    dora: Annotated[bool, identity("adapter.kind.dora", "adapter dora")] = False
    dtype: Annotated[DType | None, numerics("adapter.dtype")] = None
    """The dtype of the adapters' weights; None is that of their layers."""
    stacked: Annotated[tuple[str, ...], DERIVED] = ()
    """The stacks of experts in `modules`: each expert has an adapter for its part of each."""
    apart: Annotated[tuple[str, ...], DERIVED] = ()
    """The parameters that are trained next to the adapters', which peft saves with their modules."""

    @property
    def scale(self) -> float:
        """The factor that multiplies the adapters' outputs."""
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)

    @property
    def experts(self) -> tuple[str, ...]:
        """The modules of experts."""
        return tuple(dict.fromkeys(map(parent_of, self.stacked)))

    @property
    def layers(self) -> tuple[str, ...]:
        """The linear layers."""
        return tuple(fqn for fqn in self.modules if fqn not in self.experts)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all adapters' weights."""
        parts = (DOWN, UP, MAGNITUDE) if self.dora else (DOWN, UP)
        of_layers = (f"{fqn}.{part}.weight" for fqn in self.layers for part in parts)
        return *of_layers, *(f"{name}_{part}" for name in self.stacked for part in (DOWN, UP))


@record(kw_only=True)
class FreezeParameters(Op):
    op: Literal["parameters.freeze"] = "parameters.freeze"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Excludes parameters from training: no gradient, no optimizer state, no reduction."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
    parameters: Annotated[tuple[str, ...], numerics("freeze")]


@record(kw_only=True)
class QuantizeBase(Op):
    op: Literal["base.quantize"] = "base.quantize"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Stores the weights of frozen linear layers as NF4: 4 bits each, and a float32 scale for each block."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
    modules: Annotated[tuple[str, ...], numerics("adapter.base")]
    block: Annotated[int, numerics("adapter.base")]
    """The inputs of a row that share a scale."""

    @property
    def block_bytes(self) -> int:
        """The bytes of a block: half a byte for each element, and a float32."""
        return self.block // 2 + 4

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all weights that are stored so."""
        return tuple(f"{fqn}.weight" for fqn in self.modules)


_CONTEXT = layout("context_parallel", is_in_sums=True)


@record(kw_only=True)
class AttachAttention(Op):
    op: Literal["attention.attach"] = "attention.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = "Gives every attention module planc's exact attention, or keeps the model's own."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.MODEL), writes=(Resource.MODEL, Resource.DOCUMENTS)
    )
    kind: Annotated[str, _CONTEXT]
    """plain, bidirectional, encoder_decoder, ring, allgather, ulysses, or eager for the model's own code.
    Plain is causal, and so is attention over cp; an encoder_decoder's is so over a target, as modules say."""
    balance: Annotated[str, _CONTEXT]
    """headtail or none."""
    over: Annotated[tuple[MeshDim, ...], _CONTEXT]
    isolates: Annotated[bool, numerics("data.packing", "documents isolated")] = False
    """Whether tokens attend only to their own document."""
    calls: Annotated[tuple[AttentionCall, ...], DERIVED] = ()
    """Each kind of call that the model's attention makes of a kernel; none of its own code."""

    @property
    def unstable(self) -> str:
        return "collectives that autograd differentiates: private in PyTorch" if self.over else ""


@record
class Draw:
    """One dropout of a module, and how ranks of tensor parallelism hold its tensor.

    `dims` are the dimensions of one device's tensor: an integer is a length that no batch changes.
    """

    probability: float
    dims: tuple[DropoutDim | int, ...]
    layout: Placement

    def __str__(self) -> str:
        return f"{self.probability} of [{', '.join(map(str, self.dims))}] {self.layout}"


@record(kw_only=True)
class AttachDropout(Op):
    op: Literal["dropout.attach"] = "dropout.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Gives modules dropout whose masks depend on the seed, the step and each element's global position."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.MODEL),
        finds=(Resource.DROPOUT,),
        writes=(Resource.MODEL, Resource.DROPOUT),
    )
    modules: Annotated[tuple[str, ...], numerics("model.dropout", "dropout")]
    draws: Annotated[tuple[Draw, ...], numerics("model.dropout", "dropout")]
    """The dropouts of each module in one forward of the model, in order."""
    seed: Annotated[int, numerics("model.seed", "dropout seed")]
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dim that the layouts are over."""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        # It sends nothing: every rank computes its part of the mask.
        return ()


CheckpointMode: TypeAlias = Literal["full", "selective", "offload"]


@record(kw_only=True)
class CheckpointActivations(Op):
    op: Literal["activation_checkpoint.wrap"] = "activation_checkpoint.wrap"
    stage: ClassVar[Stage] = Stage.ACTIVATION_CHECKPOINT
    summary: ClassVar[str] = "Makes modules recompute all or most of their activations in backward."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MODEL,), finds=(Resource.PIPELINE,), writes=(Resource.MODEL,)
    )
    mode: Annotated[CheckpointMode, layout("activation_checkpoint")]
    modules: Annotated[tuple[str, ...], layout("activation_checkpoint")]


CompileBackend: TypeAlias = Literal["inductor", "aot_eager", "eager"]
CompileMode: TypeAlias = Literal["default", "max-autotune-no-cudagraphs"]


_COMPILE = layout("compile", is_in_sums=True)


@record(kw_only=True)
class CompileModules(Op):
    op: Literal["compile.wrap"] = "compile.wrap"
    stage: ClassVar[Stage] = Stage.COMPILE
    summary: ClassVar[str] = (
        "Compiles the forward and backward of each module with torch.compile, and those of the loss."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MODEL,),
        finds=(Resource.PIPELINE, Resource.DROPOUT),
        writes=(Resource.MODEL, Resource.COMPILED),
    )
    backend: Annotated[CompileBackend, _COMPILE]
    mode: Annotated[CompileMode | None, _COMPILE]
    """The mode of inductor; the other backends have none."""
    fullgraph: Annotated[bool, _COMPILE]
    dynamic: Annotated[bool, _COMPILE]
    loss: Annotated[bool, layout("compile.loss", "compiled loss", is_in_sums=True)]
    """Whether the cross entropy is compiled too."""
    modules: Annotated[tuple[str, ...], _COMPILE]

    @property
    def fuses(self) -> bool:
        """Whether neighboring operations become one kernel: other backends run them one by one."""
        return self.backend == "inductor"


@record(kw_only=True)
class MaterialiseWeights(Op):
    op: Literal["weights.materialise"] = "weights.materialise"
    stage: ClassVar[Stage] = Stage.MATERIALISE
    summary: ClassVar[str] = "Allocates each rank's own shards on its device."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MODEL,), finds=(Resource.PIPELINE,), writes=(Resource.MODEL,)
    )


@record(kw_only=True)
class InitWeights(Op):
    op: Literal["weights.init"] = "weights.init"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = (
        "Draws the initial weights that a rank holds, by their places: bitwise equal on every mesh."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.MODEL,), writes=(Resource.WEIGHTS,))
    seed: Annotated[int, identity("model.seed")]


@record(kw_only=True)
class LoadWeights(Op):
    op: Literal["weights.load"] = "weights.load"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = "Reads each rank's slices of the model's safetensors files."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MODEL,), finds=(Resource.PIPELINE,), writes=(Resource.WEIGHTS,)
    )
    path: Annotated[str, start("model.weights")]
    seed: Annotated[int, identity("model.seed")]
    """Seeds the buffers that no file holds."""
    strip: Annotated[str | None, start("model.strip")] = None
    """The part of the tensors' names in the files that the model's names lack."""


@record(kw_only=True)
class LoadBase(LoadWeights):
    op: Literal["weights.load_base"] = "weights.load_base"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Reads a pretrained model as `weights.load`, and draws by place what the files lack of a new head."
    )
    new: Annotated[tuple[str, ...], DERIVED]
    """The parameters of the new head, and of other parts that its class has and the files' class lacks."""


@record(kw_only=True)
class InitAdapters(Op):
    op: Literal["adapters.init"] = "adapters.init"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = (
        "Draws the adapters' first weights by their places, and sets the second to zero: no output changes."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.WEIGHTS,)
    )
    modules: Annotated[tuple[str, ...], DERIVED]
    seed: Annotated[int, DERIVED]


@record(kw_only=True)
class LoadAdapters(Op):
    op: Literal["adapters.load"] = "adapters.load"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = "Reads each rank's slices of the adapters in a directory that peft wrote."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS,), finds=(Resource.PIPELINE,), writes=(Resource.WEIGHTS,)
    )
    path: Annotated[str, start("adapter.start")]
    modules: Annotated[tuple[str, ...], DERIVED]
