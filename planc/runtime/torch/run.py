"""Facts of a run that are fixed on this rank once it starts, and the services that its ops call."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from planc.graph.artifact import base_between, dump
from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, FullyShard, InitWeights, LoadWeights, OpenLabeledData
from planc.graph.sources import training_data
from planc.runtime.checkpoint_format.records import FileEntry
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.observer import Together
from planc.runtime.process import Launch
from planc.runtime.ranks.reads import Reads
from planc.runtime.ranks.statements import Statements
from planc.runtime.ranks.watch import Watch
from planc.runtime.stopping.notice import Notice
from planc.runtime.stopping.stop_points import StopPoints
from planc.runtime.throughput import Work
from planc.runtime.torch.copies import to_device
from planc.vocab import MeshDim


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


@dataclass(frozen=True)
class Run:
    """The fixed facts of a run; what ops change is a `planc.graph.op.Resource`. Not slotted, as it caches."""

    graph: Graph
    plan_hash: str
    launch: Launch
    paths: Paths
    observer: Together
    device: torch.device
    reports_sample_ids: bool = False
    is_rehearsal: bool = False
    """The memory is that of the plan's device, which this machine lacks."""
    runs_extensions: bool = False
    """Whether code that the plan brings may run, by the leave of whoever starts it."""
    sources: tuple[tuple[str, str], ...] = ()
    """The plan's files: (file name, SHA-256)."""
    overrides: tuple[str, ...] = ()
    """The launch's values that override the plan's."""
    work: Work | None = None
    """None if the FLOPs of a step are unknown."""
    store: dist.Store | None = None  # type: ignore[name-defined]
    """The store of the ranks' rendezvous; None for a single rank."""
    statements: Statements | None = None
    """None if a rank reports only for itself."""
    watch: Watch | None = None
    """None for a single rank."""
    notice: Notice = field(default_factory=Notice)
    """Whether the run was asked to stop."""
    stop_points: StopPoints | None = None
    """None for a single rank."""
    weight_hashes: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    """The hashes of weight files, by the model's directory as the plan names it."""
    effort: BestEffort = field(default_factory=BestEffort)
    """The effort for writes that are not training state."""
    whole_outline: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Dtype and shape of each of the model's parameters, in a rehearsal, which leaves out layers."""
    shown: list[str] = field(default_factory=list)
    """The results of the trials of the plan's own code."""
    reads: Reads = field(default_factory=Reads)
    """Reads of this rank since the last agreement of ranks."""

    @cached_property
    def has_queue(self) -> bool:
        """Whether the device works later than it is asked to, so the host waits where it reads."""
        return self.device.type == "cuda"

    @cached_property
    def keeps_gradients(self) -> bool:
        """Whether the memory in which replicas sum gradients stays allocated from step to step."""
        return self.device.type == "cpu" and not self.is_rehearsal

    @cached_property
    def weights_device(self) -> torch.device:
        """The device that keeps parameters, gradients and optimizer state between uses."""
        offloads = any(isinstance(op, FullyShard) and op.cpu_offload for op in self.graph.setup)
        return torch.device("cpu") if offloads else self.device

    @cached_property
    def model_op(self) -> BuildModel:
        """The op that builds the model."""
        return next(op for op in self.graph.setup if isinstance(op, BuildModel))

    @cached_property
    def seed(self) -> int:
        return next(op.seed for op in self.graph.setup if isinstance(op, InitWeights | LoadWeights))

    @cached_property
    def num_logits(self) -> int:
        """The logits of a token, or of a sequence: one for each that its label can be."""
        data = training_data(self.graph)
        return data.num_labels if isinstance(data, OpenLabeledData) else data.vocab_size

    @cached_property
    def dp_rank(self) -> int:
        """This rank's place among the ranks that see different samples."""
        shard_size = self.graph.size(MeshDim.DP_SHARD)
        return self.coordinate(MeshDim.DP_REPLICATE) * shard_size + self.coordinate(MeshDim.DP_SHARD)

    @property
    def dp_size(self) -> int:
        return self.graph.dp_size

    def coordinate(self, mesh_dim: MeshDim) -> int:
        """This rank's place along a mesh dim."""
        return self._coordinates[mesh_dim]

    @cached_property
    def _coordinates(self) -> dict[MeshDim, int]:
        found, rank = {}, self.launch.rank
        for mesh_dim, size in reversed(self.graph.mesh):
            rank, found[mesh_dim] = divmod(rank, size)
        return found

    def to_device(self, tensor: Tensor) -> Tensor:
        """A tensor in the host's memory, on the device; the host does not wait for the copy."""
        return to_device(tensor, self.device, has_queue=self.has_queue)

    def artifact(self, folder: Path) -> str:
        """The compiled plan's text for a file in a directory."""
        base = base_between(folder, plan_folder=self.paths.base)
        return dump(self.graph, sources=self.sources, overrides=self.overrides, base=base)
