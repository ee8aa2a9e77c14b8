"""The state of one run on one rank: the results of ops so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from planc.graph.artifact import base_between, dump
from planc.graph.graph import Graph
from planc.graph.ops import BuildSchedule, FullyShard, OpenData
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.loader import BatchLoader, MicroBatch
from planc.runtime.data.open import MixedData
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.observer import Evaluation, Observer
from planc.runtime.process import Launch
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.ranks.reads import Reads
from planc.runtime.ranks.watch import Watch
from planc.runtime.run_directory.best_effort import BestEffort
from planc.runtime.stopping.grace import Stretches
from planc.runtime.stopping.notice import Notice
from planc.runtime.stopping.stop_points import StopPoints
from planc.runtime.throughput import Work
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.checkpoint import BackgroundSaves, SavePlan, TrainingState
from planc.runtime.torch.copies import to_device
from planc.runtime.torch.dropout.masking import Masking
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.parallel.rank_unit import RankUnit
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.reporting.phase_times import PhaseClock
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.guard_state import GuardState
from planc.runtime.torch.weights.views import View
from planc.runtime.trackers import Following
from planc.vocab import MeshDim

if TYPE_CHECKING:
    # Lazy: they import this module.
    from planc.runtime.torch.agreement.first_step import FirstStep
    from planc.runtime.torch.parallel.replica_sums import ReplicaSums
    from planc.runtime.torch.reporting.by_source import SourceSums
    from planc.runtime.torch.reporting.expert_load import ExpertLoad
    from planc.runtime.torch.reporting.line import Line
    from planc.runtime.torch.reporting.profile import Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Paths:
    """`base` is the base of the plan's relative paths; `run` is the run directory.

    `prepared` is the directory of prepared data; None keeps data of any size in memory.
    """

    base: Path
    run: Path
    prepared: Path | None = None

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """One micro-batch as this rank sees it: [micro_batch, sequence_length / cp], int64, on the device."""

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    """Positions in the sequence, or in the document if documents are isolated."""
    sources: Tensor | None = None
    """[micro_batch]: the number of each sequence's source in a mixture."""


@dataclass(slots=True)
class Session:
    """Filled op by op. A field is None until its op has run; graph verification proves the order."""

    graph: Graph
    plan_hash: str
    launch: Launch
    paths: Paths
    observer: Observer
    device: torch.device
    reports_sample_ids: bool = False
    has_queue: bool = field(init=False)
    """The device works later than it is asked to, so the host waits where it reads."""
    keeps_gradients: bool = field(init=False)
    """The memory in which replicas sum gradients stays allocated from step to step."""
    reads: Reads = field(default_factory=Reads)
    """What this rank has read since the last agreement of ranks."""
    sources: tuple[tuple[str, str], ...] = ()
    """The plan's files: (file name, SHA-256)."""
    overrides: tuple[str, ...] = ()
    """The launch's values that override the plan's."""
    effort: BestEffort = field(default_factory=BestEffort)
    """For writes that are not training state."""
    rank_log: RankLog | None = None
    following: Following | None = None
    """The trackers, if the plan names any and this is rank 0."""
    trace: Trace | None = None
    """The trace under way, in the steps that the plan profiles."""
    line: Line | None = None
    """The last logged step's, until it is written."""
    work: Work | None = None
    """None if the FLOPs of a step are unknown."""
    first_step: FirstStep | None = None
    """None if collectives are not counted, or no longer."""
    expert_load: ExpertLoad | None = None
    """None without experts whose tokens are counted."""
    own_time: OwnTime | None = None
    """None if ranks are not compared."""
    clock: PhaseClock | None = None
    """None if nothing is timed."""
    store: dist.Store | None = None  # type: ignore[name-defined]
    """Where ranks met; None for a single rank."""
    watch: Watch | None = None
    """None for a single rank."""
    notice: Notice = field(default_factory=Notice)
    """Whether the run was asked to stop."""
    num_stop_requests: Tensor | None = None
    """How many ranks were asked to stop, when the last metrics were summed."""
    is_stopping: bool = False
    """All ranks know, at the same point of the run, that it ends once everything new is saved."""
    stop_points: StopPoints = field(init=False)
    pending_evaluations: tuple[str, ...] = ()
    """Labels of evaluations that were due after the last completed step, and postponed."""
    saved_step: int | None = None
    """The last step whose checkpoint is committed."""
    stretches: Stretches = field(default_factory=Stretches)
    is_warned_of_grace: bool = False
    is_warned_of_no_labels: bool = False
    loaded_views: dict[str, View] = field(default_factory=dict)
    """The source of loaded values, by parameter or buffer, until ranks have compared them."""
    saves: BackgroundSaves | None = None
    """None until the first asynchronous save."""
    save_plan: SavePlan | None = None
    """None until the first save."""
    _mesh: DeviceMesh | None = None
    _submeshes: dict[MeshDim, DeviceMesh] = field(default_factory=dict)
    """A cache: slicing a mesh takes longer than everything a step does with its dims."""
    _coordinates: dict[MeshDim, int] = field(default_factory=dict)
    """A cache, as every micro-batch asks: a mesh searches its ranks for this one."""
    _model: nn.Module | None = None
    _parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    """A cache: walking all modules takes longer than what a step does with their gradients' names."""
    _optimizer: Optimizer | None = None
    _schedule: BuildSchedule | None = None
    _loader: BatchLoader | None = None
    _data_op: OpenData | None = None
    mixed: list[MixedData | None] = field(default_factory=list)
    """The sources of a mixture; None for one that another rank can't use."""
    units: list[RankUnit] = field(default_factory=list)
    """FSDP's units on this rank."""
    pipeline: Pipeline | None = None
    """This rank's stages; None without a pipeline."""
    documents: Documents | None = None
    """The documents of the current micro-batch, if documents are isolated."""
    masking: Masking | None = None
    """None if nothing is dropped."""
    compiled: CompiledGraphs | None = None
    """None if nothing is compiled."""
    evaluation_sets: dict[str, EvaluationSet] = field(default_factory=dict)
    """By their label in the plan."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """The evaluations of this step."""
    model_digest: str = ""
    tokenizer_files: Files | None = None
    """The run's tokenizer as an export has it; on rank 0, unless it is `bytes`."""
    seed: int = 0
    vocab_size: int = 0
    data_fingerprint: str = ""
    completed_steps: int = 0
    batch_since: tuple[int, int] = (0, 0)
    """A step, and the samples consumed by then: every step since has had the same number of samples."""
    batch: list[MicroBatch] = field(default_factory=list)
    num_labels: Tensor | None = None
    """The number of target tokens of the step, over all ranks: on the device."""
    batch_tokens: int = 0
    """The same number, once the step is read."""
    local_batch: LocalBatch | None = None
    logits: Tensor | None = None
    loss: Tensor | None = None
    step_loss: Tensor | None = None
    """This rank's share of the step's loss, summed over micro steps."""
    mean_loss: float = 0.0
    """The step's loss over all ranks, once the step is read."""
    source_sums: SourceSums | None = None
    """The loss and labels of each source of a mixture; None without one."""
    replica_sums: ReplicaSums | None = None
    """None until the first step, and without replicas of whole parameters."""
    squared_norm: Tensor | None = None
    """The square of the gradient norm."""
    grad_norm: float = 0.0
    """The gradient norm before clipping, once the step is read."""
    guard: GuardState = field(default_factory=GuardState)
    step_started: float = 0.0

    def __post_init__(self) -> None:
        self.stop_points = StopPoints(self.notice)
        self.has_queue = self.device.type == "cuda"
        self.keeps_gradients = self.device.type == "cpu"

    @property
    def mesh(self) -> DeviceMesh:
        return _made(self._mesh)

    @property
    def model(self) -> nn.Module:
        return _made(self._model)

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The model's parameters by name, in its order: from the optimizer on, which must have the same."""
        if not self._parameters:
            self._parameters.update(self.model.named_parameters())
        return self._parameters

    @property
    def optimizer(self) -> Optimizer:
        return _made(self._optimizer)

    @property
    def training_state(self) -> TrainingState:
        """What checkpoints save and fill."""
        stages = self.pipeline.activations if self.pipeline is not None else None
        return TrainingState(self.model, self.optimizer, stages)

    @property
    def schedule(self) -> BuildSchedule:
        return _made(self._schedule)

    @property
    def loader(self) -> BatchLoader:
        return _made(self._loader)

    @property
    def data_op(self) -> OpenData:
        return _made(self._data_op)

    @property
    def weights_device(self) -> torch.device:
        """Where parameters, gradients and optimizer state are kept between uses."""
        offloads = any(isinstance(op, FullyShard) and op.cpu_offload for op in self.graph.setup)
        return torch.device("cpu") if offloads else self.device

    def to_device(self, tensor: Tensor) -> Tensor:
        """A tensor in the host's memory, on the device; the host does not wait for the copy."""
        return to_device(tensor, self.device, has_queue=self.has_queue)

    def note_compilation(self, where: str) -> None:
        """Report what torch.compile has made since the last call."""
        for text in self.compiled.report(where) if self.compiled is not None else ():
            self.observer.noted(text)

    def artifact(self, folder: Path) -> str:
        """The compiled plan's text for a file in a directory."""
        base = base_between(folder, plan_folder=self.paths.base)
        return dump(self.graph, sources=self.sources, overrides=self.overrides, base=base)

    def submesh(self, mesh_dim: MeshDim) -> DeviceMesh:
        if mesh_dim not in self._submeshes:
            self._submeshes[mesh_dim] = self.mesh[mesh_dim.value]
        return self._submeshes[mesh_dim]

    def coordinate(self, mesh_dim: MeshDim) -> int:
        """This rank's place along a mesh dim."""
        if mesh_dim not in self._coordinates:
            self._coordinates[mesh_dim] = self.submesh(mesh_dim).get_local_rank()
        return self._coordinates[mesh_dim]

    def held(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some modules or parameters that are on this rank: all of them, without a pipeline."""
        return tuple(name for name in names if self.pipeline is None or self.pipeline.has(name))

    @property
    def dp_rank(self) -> int:
        """This rank's place among the ranks that see different samples."""
        shard_size = self.graph.size(MeshDim.DP_SHARD)
        return self.coordinate(MeshDim.DP_REPLICATE) * shard_size + self.coordinate(MeshDim.DP_SHARD)

    @property
    def dp_size(self) -> int:
        return self.graph.dp_size

    def sum_over(self, tensor: Tensor, mesh_dims: Iterable[MeshDim]) -> Tensor:
        """`tensor`, summed in place over the given mesh dims one after the other."""
        for mesh_dim in mesh_dims:
            dist.all_reduce(tensor, group=self.submesh(mesh_dim).get_group())
        return tensor


def _made(value: T | None) -> T:
    assert value is not None, "graph verification proves that an earlier op made this"
    return value
