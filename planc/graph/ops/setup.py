"""Ops that build the model on a mesh and fill its weights."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DropoutDim, DType, MeshDim, Placement


@record(kw_only=True)
class InitMesh(Op):
    op: Literal["mesh.init"] = "mesh.init"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Starts the process group and arranges the ranks in a device mesh."
    sizes: tuple[tuple[MeshDim, int], ...]
    """Every mesh dim with its size, outermost first."""
    backend: str
    timeout_seconds: int

    def effects(self) -> Effects:
        return Effects(writes=(Resource.MESH,), communicates=tuple(dim for dim, _ in self.sizes))


@record(kw_only=True)
class BuildModel(Op):
    op: Literal["model.build"] = "model.build"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = "Builds the model on the meta device: modules and shapes without memory."
    path: str
    """The model directory as the plan names it."""
    config_digest: str
    """SHA-256 of its config.json."""
    architecture: str
    dtype: DType
    own_dtypes: tuple[tuple[str, DType], ...]
    """Parameters and buffers that the model's code builds in another dtype, by name."""
    kept_in_float32: tuple[str, ...]
    """Parameters and buffers that are float32, random or loaded, because `from_pretrained` keeps them so; the
    model's code builds them in `dtype`."""
    zeroed: tuple[str, ...]
    """Fields of config.json that are set to 0 because training would draw random numbers for them."""
    rope: tuple[tuple[str, str | int | float], ...] = ()
    """What the plan states in place of config.json's `rope_parameters`, by transformers' names."""
    rope_positions: int | None = None
    """The length of sequences, if rotary embeddings depend on it: they are computed for it once."""

    @property
    def other_dtypes(self) -> dict[str, DType]:
        """The dtype of every parameter and buffer with another dtype than `dtype`."""
        return {**dict(self.own_dtypes), **dict.fromkeys(self.kept_in_float32, DType.FLOAT32)}

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.MODEL,))


@record(kw_only=True)
class AttachAttention(Op):
    op: Literal["attention.attach"] = "attention.attach"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = (
        "Gives every attention module planc's exact causal attention, or keeps the model's own."
    )
    kind: str
    """plain, ring, allgather, ulysses, or eager for the model's own code."""
    balance: str
    """headtail or none."""
    over: tuple[MeshDim, ...]
    isolates: bool = False
    """Whether tokens attend only to their own document."""

    @property
    def unstable(self) -> str:
        return "collectives that autograd differentiates: private in PyTorch" if self.over else ""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,), communicates=self.over)


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
    modules: tuple[str, ...]
    draws: tuple[Draw, ...]
    """What each of the modules drops in one forward of the model, in order."""
    seed: int
    over: tuple[MeshDim, ...]
    """The mesh dim that the layouts are over."""

    def effects(self) -> Effects:
        # It sends nothing: every rank computes its part of the mask.
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))


@record(kw_only=True)
class CheckpointActivations(Op):
    op: Literal["activation_checkpoint.wrap"] = "activation_checkpoint.wrap"
    stage: ClassVar[Stage] = Stage.ACTIVATION_CHECKPOINT
    summary: ClassVar[str] = "Makes modules recompute all or most of their activations in backward."
    mode: Literal["full", "selective"]
    modules: tuple[str, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))


CompileBackend: TypeAlias = Literal["inductor", "aot_eager", "eager"]
CompileMode: TypeAlias = Literal["default", "max-autotune-no-cudagraphs"]


@record(kw_only=True)
class CompileModules(Op):
    op: Literal["compile.wrap"] = "compile.wrap"
    stage: ClassVar[Stage] = Stage.COMPILE
    summary: ClassVar[str] = "Compiles the forward and backward of each module with torch.compile."
    backend: CompileBackend
    mode: CompileMode | None
    """The mode of inductor; the other backends have none."""
    fullgraph: bool
    dynamic: bool
    modules: tuple[str, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))


@record(kw_only=True)
class MaterialiseWeights(Op):
    op: Literal["weights.materialise"] = "weights.materialise"
    stage: ClassVar[Stage] = Stage.MATERIALISE
    summary: ClassVar[str] = "Allocates each rank's own shards on its device."

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))


@record(kw_only=True)
class InitWeights(Op):
    op: Literal["weights.init"] = "weights.init"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = (
        "Draws the initial weights that a rank holds, by their places: bitwise equal on every mesh."
    )
    seed: int

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.WEIGHTS,))


@record(kw_only=True)
class LoadWeights(Op):
    op: Literal["weights.load"] = "weights.load"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = "Reads each rank's slices of the model's safetensors files."
    path: str
    seed: int
    """Seeds the buffers that no file holds."""
    strip: str | None = None
    """The part of the tensors' names in the files that the model's names lack."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.WEIGHTS,))
