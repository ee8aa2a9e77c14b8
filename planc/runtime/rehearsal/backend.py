"""Executes ops as the torch backend does, on fake tensors; only what needs values or files is played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.graph import ops
from planc.graph.op import Op
from planc.modeling.first_positions import FirstPositions
from planc.modeling.initialization import draw, fresh_copy, unset_tensors
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.order import SampleOrder
from planc.runtime.data.packing import PackedDataset
from planc.runtime.interpreter import Position
from planc.runtime.rehearsal.collectives import CollectiveRecorder
from planc.runtime.rehearsal.exchange import exchanging
from planc.runtime.rehearsal.grouped_mm import teach_grouped_mm
from planc.runtime.rehearsal.memory import BEFORE, MemoryTracer
from planc.runtime.rehearsal.private import FakeTensor, FakeTensorMode
from planc.runtime.rehearsal.stack import drop_layers, layer_lists
from planc.runtime.torch.attention import allgather
from planc.runtime.torch.backend import HANDLERS as TORCH_HANDLERS
from planc.runtime.torch.backend import Handler, TorchBackend
from planc.runtime.torch.checkpoint.reader import TensorLoadPlanner
from planc.runtime.torch.checkpoint.tensors import TrainingState, named_tensors
from planc.runtime.torch.checkpoint.writer import TensorSavePlanner
from planc.runtime.torch.parallel.gradients import messages_of_replicas, scale, squared_norm, sum_together
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.reporting import metrics as reporting
from planc.runtime.torch.session import Session
from planc.runtime.torch.training.guarding import agree_on_worst
from planc.runtime.torch.training.preemption import sum_with_notices
from planc.runtime.torch.weights import build
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES
from planc.runtime.torch.weights.export import without_gather_warnings
from planc.runtime.torch.weights.weights import unset_error

MEASURED_STEP = 2
"""The first step makes the optimizer's state; the second is as all that follow."""

PURPOSES: Mapping[type[Op], str] = {
    ops.MaterialiseWeights: "parameters",
    ops.Forward: "activations",
    ops.ComputeLoss: "logits and loss",
    ops.Backward: "gradients on their way",
    ops.SyncGradients: "gradients",
    ops.AllReduceGradients: "gradients",
    ops.StepOptimizer: "optimizer",
}
"""What storages are for that an op creates; of every other op, `other`."""

_OUTSIDE = (
    ops.InitMesh,
    ops.BuildModel,
    ops.AttachAttention,
    ops.ShardTensorParallel,
    ops.CheckpointActivations,
    ops.CompileModules,
    ops.FullyShard,
    ops.BuildSchedule,
    ops.StepSchedule,
    ops.OpenData,
    ops.NextBatch,
    ops.Log,
    ops.SaveCheckpoint,
)
"""Ops that run outside the fake mode: meshes, styles and checkpoint plans compute with real indices, and
counts are real numbers."""


class RehearsalBackend(TorchBackend):
    """One rank of a fake world. `dropped` layers are taken out of the model as soon as it is built."""

    def __init__(self, session: Session, *, dropped: frozenset[str]) -> None:
        super().__init__(session)
        self.dropped = dropped
        teach_grouped_mm()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.memory = MemoryTracer(self.fake_mode)
        self._part = ""
        """What kind of micro step it is: gradients pile up until the last one reduces them."""
        self.calls: dict[tuple[str, int], CollectiveRecorder] = {}
        """What the measured step sends, by op and micro step."""
        self._layers: tuple[str, ...] = ()

    def execute(self, op: Op, position: Position) -> None:
        self.memory.set_purpose(PURPOSES.get(type(op), "other"))
        self._part = "" if position.is_last_micro_step else " (accumulating)"
        self.memory.enter_segment(op.name + self._part if position.step == MEASURED_STEP else BEFORE)
        self.memory.enter_visit()
        match op:
            case ops.BuildModel():
                build.build_model(self.session, op, position)
                drop_layers(self.session.model, self.dropped)
            case ops.InitWeights() | ops.LoadWeights():
                self._draw(op, position)
            case ops.AllReduceGradients():
                self._all_reduce_gradients(op, position)
            case ops.StepOptimizer():
                self._step_optimizer(op, position)
            case _:
                with self._modes(op, position):
                    HANDLERS[type(op)](self.session, op, position)
        self._name_storages(op)

    def started(self, *, first_step: int) -> None:
        for fqn, children in layer_lists(self.session.model):
            layers = {f"{fqn}.{name}": layer for name, layer in children.named_children()}
            self._layers += tuple(layers)
            for name, layer in layers.items():
                self._mark(layer, name, is_last=name == self._layers[-1])
        self._own(self.session.model.named_parameters())
        self.memory.relabel(self.session.model.buffers(), purpose="buffers")

    def is_told_to_end(self, *, step: int) -> bool:
        return False

    def leaves_step(self) -> bool:
        return False

    def leave_step(self, *, step: int) -> None:
        raise AssertionError("a rehearsal finishes its steps")

    def left_evaluations(self) -> tuple[ops.Evaluate, ...]:
        return ()

    def _own(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Says of tensors whose parameter each belongs to."""
        for name, tensor in tensors:
            self.memory.own(local_of(tensor), layer=self._layer_of(name))

    def _layer_of(self, fqn: str) -> str:
        return next((layer for layer in self._layers if fqn.startswith(f"{layer}.")), "")

    @contextlib.contextmanager
    def _modes(self, op: Op, position: Position) -> Iterator[None]:
        with contextlib.ExitStack() as modes:
            modes.enter_context(self.memory.watching())
            modes.enter_context(_without_masks())
            modes.enter_context(exchanging(self.session.graph))
            if not isinstance(op, _OUTSIDE):
                modes.enter_context(self.fake_mode)
                modes.enter_context(self.memory)
                modes.enter_context(FirstPositions(_is_fake))
            # Logging is not part of every step, nor is saving.
            if position.step == MEASURED_STEP and not isinstance(
                op, ops.Log | ops.SaveCheckpoint | ops.ExportHf
            ):
                recorder = self.calls.setdefault((op.name, position.micro_step), CollectiveRecorder())
                modes.enter_context(recorder)
            yield

    def _draw(self, op: ops.InitWeights | ops.LoadWeights, position: Position) -> None:
        """As a run draws weights, once it is known that nothing stays unset. No file is read."""
        self.session.seed = op.seed
        in_files = dict(self.session.model.named_parameters()) if isinstance(op, ops.LoadWeights) else {}
        for name in unset_tensors(self._pristine()):
            if name not in in_files:
                raise unset_error(name)
        pristine = self._pristine()
        for module in pristine.modules():
            # Rotary tables and their like are computed from values, which nothing here has. What is around
            # other modules keeps its tensors: it is initialised once more after each of those.
            if not any(module.children()) and not any(True for _ in module.parameters()):
                _drop_tensors(module)
        # They are drawn in the processor's memory, on any device.
        with self._modes(op, position), self.memory.looking_away():
            # Where a rank's block lies takes values to compute; its shape was settled when it was sharded.
            draw(pristine, seed=op.seed, keep=lambda *_: None)

    def _pristine(self) -> nn.Module:
        """The rehearsed layers of the model as they were built."""
        pristine: nn.Module = fresh_copy(self.session.model)
        drop_layers(pristine, self.dropped)
        return pristine

    def _all_reduce_gradients(self, op: ops.AllReduceGradients, position: Position) -> None:
        """A run's sums. A layer's message is a visit to it, so a longer stack sends one after the other."""
        with self._modes(op, position):
            for name, parameters, group in messages_of_replicas(self.session, op):
                self.memory.enter_visit(self._layer_of(name))
                sum_together(parameters, group=group)

    def _step_optimizer(self, op: ops.StepOptimizer, position: Position) -> None:
        """A run's step. Counted is what the op says that it takes beside, not what a processor takes."""
        with self._modes(op, position):
            self._allocate_copies()
            with self.memory.looking_away():
                self.session.optimizer.step()
            self.memory.set_purpose("optimizer state")
            for name, parameter in self.session.model.named_parameters():
                for state in self.session.optimizer.state[parameter].values():
                    self.memory.follow((local_of(state),))
                    self._own([(name, state)])
            self.session.optimizer.zero_grad(set_to_none=True)

    def _allocate_copies(self) -> None:
        """Makes, and frees, what an implementation without one kernel for all makes in a step."""
        (op,) = (op for op in self.session.graph.setup if isinstance(op, ops.BuildOptimizer))
        parameters = dict(self.session.model.named_parameters())
        for group in op.groups:
            members = [(name, local_of(parameters[name])) for name in group.parameters if name in parameters]
            is_loop = op.implementation_on("cuda") == "for_loop"
            apart = [[one] for one in members] if is_loop else [members]
            for together in apart:
                copies = [(name, torch.empty_like(one)) for name, one in together * op.num_copies(group)]
                # One after the other takes no more room in a longer stack.
                self._own(() if is_loop else copies)
                del copies

    def _mark(self, layer: nn.Module, fqn: str, *, is_last: bool) -> None:
        """Makes forward and backward of a layer segments of their own, and visits."""

        def arrive(*_: Any) -> None:
            self.memory.enter_visit(fqn)

        def before(*_: Any) -> None:
            self._enter(f"forward {fqn}")

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self._enter("forward")
            if is_last:
                self.memory.enter_visit()
            hidden = output[0] if isinstance(output, tuple) else output
            if isinstance(hidden, Tensor) and hidden.requires_grad:
                hidden.register_hook(back)  # type: ignore[no-untyped-call]

        def back(_: Any) -> None:
            self._enter(f"backward {fqn}")
            self.memory.enter_visit(fqn, is_forward=False)

        # What FSDP gathers for the layer belongs to the visit, and not to the segment, whose name says that
        # the layer runs.
        layer.register_forward_pre_hook(arrive, prepend=True)
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)

    def _enter(self, segment: str) -> None:
        if self.memory.is_measuring:
            self.memory.enter_segment(segment + self._part)

    def _name_storages(self, op: Op) -> None:
        """Tells what turned out to be gradients from what was only on the way."""
        if isinstance(op, ops.Backward):
            found = (parameter.grad for parameter in self.session.model.parameters())
            self.memory.relabel((local_of(one) for one in found if one is not None), purpose="gradients")


@contextlib.contextmanager
def _without_masks() -> Iterator[None]:
    """CUDA's kernels know the lower right triangle; the mask that a processor takes for it does not count."""
    mask = allgather.lower_right_mask
    allgather.lower_right_mask = lambda *_, **__: None
    try:
        yield
    finally:
        allgather.lower_right_mask = mask


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def _drop_tensors(module: nn.Module) -> None:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    for name, _ in own:
        delattr(module, name)


def open_data(session: Session, op: ops.OpenData, position: Position) -> None:
    """One sequence of zeros, again and again: ids and values matter to no shape."""
    tokens = np.zeros(op.sequence_length + 1, dtype=np.uint8)
    data = PackedDataset(tokens, op.sequence_length, num_documents=1, num_text_bytes=0)
    order = SampleOrder(data.num_sequences, seed=op.shuffle_seed)
    session._loader = BatchLoader(
        BatchSource(data, order, op.global_batch, op.micro_batch, session.dp_size, session.dp_rank)
    )


def pass_over(session: Session, op: Op, position: Position) -> None:
    """An evaluation computes the forward of a step, which is rehearsed, and keeps less of it.

    What is told of a run is no part of it, nor are the bits of its weights.
    """


def clip_gradients(session: Session, op: ops.ClipGradients, position: Position) -> None:
    """Measures and scales: whether a run's norm is over the limit, only its values tell."""
    gradients = [p.grad for p in session.model.parameters() if p.grad is not None]
    squared_norm(gradients, device=session.device)
    if op.max_norm is not None:
        scale(gradients, factor=0.5)


def reduce_metrics(session: Session, op: ops.ReduceMetrics, position: Position) -> None:
    """Sums the loss; only a run's has a value to look at."""
    sum_with_notices(session, op)


def guard_step(session: Session, op: ops.GuardStep, position: Position) -> None:
    """Agrees on a verdict: which one, only values tell."""
    agree_on_worst(session, op, torch.zeros((), dtype=torch.int64))


def stay_uncompiled(session: Session, op: ops.CompileModules, position: Position) -> None:
    """Shapes, layouts and collectives are those of the module as it is; what it keeps is at most as much."""


def log(session: Session, op: ops.Log, position: Position) -> None:
    session.step_loss = torch.zeros((), dtype=torch.float64)
    reporting.log(session, op, position)


def resume_checkpoint(session: Session, op: ops.ResumeCheckpoint, position: Position) -> None:
    """Nothing is there to resume from; `save_checkpoint` plans a resume from what it would save."""


def save_checkpoint(session: Session, op: ops.SaveCheckpoint, position: Position) -> None:
    """Plans what this rank would write, and what it would read back."""
    tensors = named_tensors(TrainingState(session.model, session.optimizer))
    saver = TensorSavePlanner()
    saver.set_up_planner(tensors, is_coordinator=True)
    _, metadata = saver.create_global_plan([saver.create_local_plan()])
    loader = TensorLoadPlanner()
    loader.set_up_planner(tensors, metadata, is_coordinator=True)
    loader.create_local_plan()


def export_hf(session: Session, op: ops.ExportHf, position: Position) -> None:
    """Gathers every weight, as an export does, and writes none."""
    with without_gather_warnings():
        for parameter in session.model.parameters():
            narrow = parameter.detach().to(TORCH_DTYPES[op.dtype])
            if isinstance(narrow, DTensor):
                narrow.full_tensor()


PLAYED: Mapping[type[Op], Callable[[Session, Any, Position], None]] = {
    ops.CompileModules: stay_uncompiled,
    ops.OpenData: open_data,
    ops.OpenEvaluation: pass_over,
    ops.Evaluate: pass_over,
    ops.ClipGradients: clip_gradients,
    ops.ReduceMetrics: reduce_metrics,
    ops.GuardStep: guard_step,
    ops.CompareReplicas: pass_over,
    ops.Log: log,
    ops.OpenLog: pass_over,
    ops.StartProfile: pass_over,
    ops.StopProfile: pass_over,
    ops.SettleSave: pass_over,
    ops.ResumeCheckpoint: resume_checkpoint,
    ops.SaveCheckpoint: save_checkpoint,
    ops.ExportHf: export_hf,
}
"""Ops that a rehearsal does not leave to the torch backend's own handler."""

HANDLERS: Mapping[type[Op], Handler] = {**TORCH_HANDLERS, **PLAYED}
