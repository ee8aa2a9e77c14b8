"""One rank of a run: planc's own runtime, watched from outside."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from planc.estimate.at_intervals import predictions
from planc.graph import ops
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.inventory.adapters import with_adapters
from planc.inventory.files import INVENTORY_NAME
from planc.inventory.load import load_inventory
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer, StepMetrics, Together
from planc.runtime.process import read_launch
from planc.runtime.ranks.reads import Entry
from planc.runtime.ranks.statements import Statements
from planc.runtime.torch.agreement import agree
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.checkpoint.tensors import named_packings, named_tensors, training_state
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.mesh import choose_device, connect
from planc.runtime.torch.parallel.packing import Packing, gathered, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.reporting.first_step import FirstStep
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.run import Paths, Run
from planc.runtime.torch.state import Averages, Weights
from planc.runtime.torch.weights.nf4 import nf4_formats
from planc.verify.perturb import perturb

Digests = dict[str, str]
BeforeOp = Callable[[State, Op, Position], None]


@dataclass(frozen=True, slots=True)
class Task:
    """The task of every rank. `before_op` is called before every op: tests plant bugs with it."""

    graph: Graph
    base: Path
    run_folder: Path
    before_op: BeforeOp | None = None
    stop_after: int | None = None
    collective_timeout_seconds: int = 60
    backend: str = "gloo"
    """`nccl` runs each rank on a CUDA device of its own."""
    perturbs: bool = False
    """Add noise to weights that are drawn, as the one process of `planc verify` does: see `perturb`."""
    compares_collectives: bool = True
    """Compare the first step's collectives with those predicted, if the model has a saved inventory."""


@dataclass(slots=True)
class Record:
    """One rank's record. Whole tensors come from rank 0 only, digests of local ones from every rank."""

    metrics: list[StepMetrics] = field(default_factory=list)
    initial: Digests = field(default_factory=dict)
    """Gradients of whole tensors."""
    buffers: Digests = field(default_factory=dict)
    """Whole parameters before the first step."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, Tensor] = field(default_factory=dict)
    """Whole parameters, and their moving averages as `ema.<name>`."""
    blocks: Digests = field(default_factory=dict)
    """Digests of local blocks, after setup, first step and run; equal keys must have equal values."""
    states: dict[int, Digests] = field(default_factory=dict)
    """Whole parameters and moments by step, as saved and as restored by a resume."""
    notes: tuple[str, ...] = ()
    """The results of the trials of the plan's own code."""
    first_step: int = 0
    learning_rates: list[tuple[float, ...]] = field(default_factory=list)
    """The learning rates of all parameter groups that each optimizer step really used."""


class Recorder(TorchBackend):
    """A torch backend that inspects the state before and after ops."""

    def __init__(self, run: Run, *, before_op: BeforeOp | None, perturbs: bool = False) -> None:
        super().__init__(run)
        self.before_op = before_op
        self.perturbs = perturbs
        self.record = Record()

    def execute(self, op: Op, position: Position) -> None:
        if self.before_op is not None:
            self.before_op(self.state, op, position)
        if isinstance(op, ops.StepOptimizer):
            rates = {repr(float(group["lr"])): "" for group in self.state[Optimizer].param_groups}
            all_rates = of_all_stages(self.state, rates)
            self.record.learning_rates.append(tuple(sorted(map(float, all_rates))))
        if isinstance(op, ops.ClipGradients) and position.step == 1:
            gradients = {name: p.grad for name, p in self._parameters().items() if p.grad is not None}
            packings = packings_of(self.state[nn.Module])
            self.record.blocks |= local_digests(gradients, prefix="gradient of ")
            self.record.gradients = tensors_of_all_stages(self.state, whole_tensors(gradients, packings))
        super().execute(op, position)
        if self.perturbs and isinstance(op, ops.InitWeights):
            perturb(self.state[nn.Module], seed=op.seed)
        if self.perturbs and isinstance(op, ops.InitAdapters):
            perturb(self.state[nn.Module], seed=op.seed, within=op.modules)
        if isinstance(op, ops.InitWeights | ops.LoadWeights | ops.InitAdapters):
            whole = whole_tensors(self._parameters(), packings_of(self.state[nn.Module]))
            whole = as_weights(self.run.graph, whole)
            self.record.initial = of_all_stages(self.state, digests(whole))
            buffers = whole_tensors(dict(self.state[nn.Module].named_buffers()), {})
            self.record.buffers = of_all_stages(self.state, digests(buffers))
        step = self.completed_steps() if isinstance(op, ops.ResumeCheckpoint) else position.step
        if isinstance(op, ops.ResumeCheckpoint | ops.SaveCheckpoint) and step:
            own = self.state[Weights], self.state[Optimizer], self.state.get(Averages)
            saved = training_state(*own, self.state.get(Pipeline))
            whole = whole_tensors(named_tensors(saved), named_packings(saved))
            self.record.states[step] = of_all_stages(self.state, digests(whole))

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.state[nn.Module].named_parameters())

    def started(self, *, first_step: int) -> None:
        self.record.first_step = first_step
        self.record.blocks |= local_digests(self._parameters(), prefix="initial ")
        super().started(first_step=first_step)
        # As in a run, whose own wrappers are in what is compiled.
        self.instruments.own_time = OwnTime(has_device_queue=self.run.has_queue)


class Metrics(Observer):
    """Collects a run's metrics in a list."""

    def __init__(self) -> None:
        self.steps: list[StepMetrics] = []

    def stepped(self, metrics: StepMetrics) -> None:
        self.steps.append(metrics)


def open_run(task: Task, observer: Observer) -> Run:
    """A run in the launch that the environment describes, as under torchrun."""
    launch = read_launch(os.environ)
    device = choose_device(task.backend, launch)
    hashed = plan_hash(task.graph)
    entries = (Entry("graph", "compiled plan", hashed),)
    store = connect(launch, device=device, timeout_seconds=task.collective_timeout_seconds, entries=entries)
    paths = Paths(base=task.base, run=task.run_folder)
    return Run(
        *(task.graph, hashed, launch, paths, Together(observer), device),
        reports_sample_ids=True,
        runs_extensions=True,
        store=store,
        statements=Statements(store, launch.rank, launch.world_size),
    )


def counted_first_step(task: Task, *, rank: int) -> FirstStep | None:
    """The comparison of the first step's collectives; None if it is left out, or nothing predicts them."""
    build = next(op for op in task.graph.setup if isinstance(op, ops.BuildModel))
    folder = task.base / build.path
    if not (task.compares_collectives and (folder / INVENTORY_NAME).exists()):
        return None
    inventory = load_inventory(folder, cache_dir=folder, may_probe=False).inventory
    if (attached := task.graph.adapters) is not None:
        inventory = with_adapters(inventory, frozenset(attached.modules), attached)
    is_cuda = task.backend == "nccl"
    predicted = predictions(task.graph, inventory, rank=rank, is_cuda=is_cuda, logs_sample_ids=True)
    return FirstStep(task.graph, predicted)


def train_rank(rank: int, world_size: int, task: Task) -> Record:
    """This rank's record of the task. Its process group stays: to leave may crash, so records go first."""
    metrics = Metrics()
    recorder = Recorder(open_run(task, metrics), before_op=task.before_op, perturbs=task.perturbs)
    recorder.instruments.first_step = counted_first_step(task, rank=rank)
    run(task.graph, recorder, stop_after=task.stop_after)
    record = recorder.record
    record.metrics = metrics.steps
    record.notes = tuple(recorder.run.shown)
    model = recorder.state[nn.Module]
    parameters = dict(model.named_parameters())
    balances = (op for op in task.graph.setup if isinstance(op, ops.BalanceExperts))
    moved = {bias for op in balances for *_, bias in op.layers}
    biases = {name: buffer for name, buffer in model.named_buffers() if name in moved}
    record.blocks |= local_digests({**parameters, **biases}, prefix="final ")
    packings = packings_of(model)
    whole = as_weights(task.graph, whole_tensors(parameters, packings)) | whole_tensors(biases, {})
    averages = recorder.state.get(Averages)
    kept = averages.by_parameter if averages is not None else {}
    averaged = {name: kept[parameter] for name, parameter in parameters.items() if parameter in kept}
    whole |= {f"ema.{name}": average for name, average in whole_tensors(averaged, packings).items()}
    record.final = tensors_of_all_stages(recorder.state, whole)
    if rank != 0:
        record.gradients, record.final = {}, {}
    return record


def packings_of(model: nn.Module) -> dict[str, Packing]:
    """The packings of parameters that pack several tensors, by name."""
    packings = packed_parameters(model)
    return {name: packings[one] for name, one in model.named_parameters() if one in packings}


def whole_tensors(
    tensors: dict[str, nn.Parameter] | dict[str, Tensor], packings: Mapping[str, Packing]
) -> dict[str, Tensor]:
    """Every tensor gathered from its shards, in its own order, in host memory. All ranks must call it."""
    # Gathering over two mesh dims one after the other is slow, which torch warns about, but correct.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # A report to another process can't hold a device's memory.
    whole = {name: gathered(tensor, packings.get(name)).detach() for name, tensor in tensors.items()}
    return {name: tensor.clone() if tensor.is_cpu else tensor.cpu() for name, tensor in whole.items()}


def as_weights(graph: Graph, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole parameters; of those that are stored in 4 bits the weights that they hold."""
    formats = nf4_formats(graph)
    return {name: formats[name].weight(held) if name in formats else held for name, held in whole.items()}


def of_all_stages(state: State, found: Mapping[str, str]) -> dict[str, str]:
    """Merge the values of a pipeline's stages; without one, return this rank's. All ranks must call it."""
    pipeline = state.get(Pipeline)
    if pipeline is None:
        return dict(found)
    parts = agree.gather(json.dumps(dict(found)), group=pipeline.activations)
    return {name: one for part in parts for name, one in json.loads(part).items()}


def tensors_of_all_stages(state: State, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of all stages, as `of_all_stages` has them, plain and in host memory."""
    own = {name: tensor.contiguous() for name, tensor in found.items()}
    coded = of_all_stages(state, {name: save({name: tensor}).hex() for name, tensor in own.items()})
    return {name: load(bytes.fromhex(code))[name] for name, code in coded.items()}


def local_digests(tensors: dict[str, nn.Parameter] | dict[str, Tensor], *, prefix: str) -> Digests:
    """Digests of local blocks, by name and by this rank's place along the mesh dims that shard them.

    Ranks with equal places hold replicas, so their digests have one key.
    """
    digests = {}
    for name, tensor in tensors.items():
        place = ""
        if isinstance(tensor, DTensor):
            coordinate: Sequence[int] = tensor.device_mesh.get_coordinate() or ()
            sharded = [
                f"{index}:{at}"
                for index, (at, placement) in enumerate(zip(coordinate, tensor.placements, strict=True))
                if placement != Replicate()
            ]
            place, tensor = " ".join(sharded), tensor.to_local()
        digests[f"{prefix}{name} [{place}]"] = digest(tensor)
    return digests


def digests(tensors: Mapping[str, Tensor]) -> Digests:
    return {name: digest(tensor) for name, tensor in tensors.items()}


def digest(tensor: Tensor) -> str:
    """The SHA-256 of a plain tensor's dtype, shape and values."""
    tensor = tensor.detach().contiguous().cpu()
    text = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.sha256(text + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
