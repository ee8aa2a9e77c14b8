"""Execute ops as the torch backend does, on fake tensors; ops that need values or files are simulated."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from planc.graph import ops
from planc.graph.op import Op
from planc.modeling.first_positions import FirstPositions
from planc.modeling.initialization import draw, fresh_copy, unset_tensors
from planc.modeling.layers import layer_lists
from planc.pipelining.orders import Action
from planc.runtime.interpreter import Position
from planc.runtime.rehearsal.compiled import NameOnlyCompiler
from planc.runtime.rehearsal.grouped_mm import teach_grouped_mm
from planc.runtime.rehearsal.memory import BEFORE, MemoryTracer
from planc.runtime.rehearsal.played import PASSED_OVER, PLAYED
from planc.runtime.rehearsal.private import FakeTensor, FakeTensorMode
from planc.runtime.rehearsal.stack import drop_layers, outline
from planc.runtime.torch.attention.kernels import as_on
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.dispatch import bind_all
from planc.runtime.torch.parallel.collectives import CollectiveRecorder
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Averages, ImageEncoder, Update, Weights
from planc.runtime.torch.training import offloading
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.fused_loss import FusedLoss
from planc.runtime.torch.training.muon import Muon
from planc.runtime.torch.weights.image_encoder import encoder_on_meta
from planc.runtime.torch.weights.weights import unset_error
from planc.vocab import outwards

MEASURED_STEP = 2
"""The first step creates the optimizer's state; the second is like all later ones."""

PURPOSES: Mapping[type[Op], str] = {
    ops.MaterialiseWeights: "parameters",
    ops.BuildAverages: "averages",
    ops.Forward: "activations",
    ops.ComputeLoss: "logits and loss",
    ops.ComputePairLoss: "logits and loss",
    ops.ComputeContrastiveLoss: "logits and loss",
    ops.Backward: "gradients on their way",
    ops.ComputeWeightGradients: "gradients on their way",
    ops.LoadImageEncoder: "image encoder",
    ops.EncodeImages: "images",
    ops.SyncGradients: "gradients",
    ops.SumTies: "gradients",
    ops.AllReduceGradients: "gradients",
    ops.StepOptimizer: "optimizer",
}
"""The purpose of the storages that an op creates; `other` for every other op."""

_OUTSIDE = (
    ops.InitMesh,
    *(ops.LoadLoss, ops.BuildLoss, ops.BuildPreferenceLoss, ops.BuildDistillationLoss),
    *(ops.LoadSchedule, ops.LoadReaders),
    *(ops.BuildModel, ops.BuildOwnModel, ops.BuildClassifier, ops.BuildEmbedder),
    *(ops.AttachAdapters, ops.QuantizeBase),
    ops.AttachAttention,
    ops.AttachDropout,
    ops.ShardTensorParallel,
    ops.ShareHeads,
    ops.ShardExperts,
    ops.CapExperts,
    ops.CheckpointActivations,
    ops.CompileModules,
    ops.SplitPipeline,
    ops.FullyShard,
    ops.PrefetchUnits,
    ops.BuildSchedule,
    ops.StepSchedule,
    *(ops.OpenData, ops.OpenMaskedData, ops.OpenLabeledData, ops.OpenMatchedData, ops.OpenMappedData),
    ops.OpenImageData,
    ops.NextBatch,
    ops.SaveCheckpoint,
)
"""Ops that run outside the fake mode: meshes, styles and checkpoint plans compute with real indices, and
counts are real numbers."""


class RehearsalBackend(TorchBackend):
    """One rank of a fake world. `dropped` layers are removed from the model as soon as it is built."""

    def __init__(self, run: Run, *, dropped: frozenset[str]) -> None:
        super().__init__(run)
        self.dropped = dropped
        teach_grouped_mm()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.memory = MemoryTracer(self.fake_mode)
        self._part = ""
        """The kind of micro step: gradients accumulate until the last one reduces them."""
        self.collectives: dict[tuple[str, int], CollectiveRecorder] = {}
        """The collectives of the measured step, by op and micro step."""
        compiling = (op for op in run.graph.setup if isinstance(op, ops.CompileModules) and op.fuses)
        self._fused = frozenset(fqn for op in compiling for fqn in op.modules)
        self._layers: tuple[str, ...] = ()
        self._step = 0

    def execute(self, op: Op, position: Position) -> None:
        self._step = position.step
        self.memory.set_purpose(PURPOSES.get(type(op), "other"))
        self._part = "" if position.is_last_micro_step else " (accumulating)"
        self.memory.enter_segment(op.name + self._part if position.step == MEASURED_STEP else BEFORE)
        self.memory.enter_visit()
        match op:
            case ops.BuildModel():
                self._handle(op, position)
                self.run.whole_outline.update(outline(self.model))
                drop_layers(self.model, self.dropped)
            case ops.InitWeights() | ops.LoadWeights():
                self._draw(op, position)
            case ops.LoadImageEncoder():
                encoder = encoder_on_meta(op, base=self.run.paths.base)
                with self._modes(op, position):
                    self.state.put(ImageEncoder(encoder.to_empty(device=self.run.device)))
            case ops.StepOptimizer():
                self._step_optimizer(op, position)
            case ops.CompileModules():
                self._compile(op)
            case _ if not isinstance(op, PASSED_OVER):
                if isinstance(op, ops.CheckpointActivations):
                    # Compiled code is traced without values.
                    for fqn in held(self.state.get(Pipeline), op.modules):
                        if self._fused.isdisjoint(outwards(fqn)):
                            _answer_positions(self.model.get_submodule(fqn))
                with self._modes(op, position):
                    self._handle(op, position)
        self._name_storages(op)

    @property
    def model(self) -> nn.Module:
        return self.state[nn.Module]

    def started(self, *, first_step: int) -> None:
        for fqn, children in layer_lists(self.model):
            layers = {f"{fqn}.{name}": layer for name, layer in children.named_children()}
            self._layers += tuple(layers)
            for name, layer in layers.items():
                self._mark(layer, name, is_last=name == self._layers[-1])
        self._own(self.model.named_parameters())
        if (averages := self.state.get(Averages)) is not None:
            named = self.model.named_parameters()
            kept = averages.by_parameter
            self._own((name, kept[parameter]) for name, parameter in named if parameter in kept)
        self.memory.relabel(self.model.buffers(), purpose="buffers")

    def order_of(self, op: ops.Accumulate) -> Sequence[Action]:
        """The whole order in the measured step; before it, one micro-batch is enough."""
        order = super().order_of(op)
        is_measured = self._step == MEASURED_STEP
        return order if is_measured else [action for action in order if action.micro_batch == 0]

    def ends_after(self, *, step: int) -> bool:
        return False

    def abandons_step(self) -> bool:
        return False

    def abandon_step(self, *, step: int) -> None:
        raise AssertionError("a rehearsal finishes its steps")

    def pending_evaluations(self) -> tuple[ops.Evaluate, ...]:
        return ()

    def _own(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Record the layer whose parameter each tensor belongs to."""
        for name, tensor in tensors:
            self.memory.own(local_of(tensor), layer=self._layer_of(name))

    def _layer_of(self, fqn: str) -> str:
        return next((layer for layer in self._layers if fqn.startswith(f"{layer}.")), "")

    @contextlib.contextmanager
    def _modes(self, op: Op, position: Position) -> Iterator[None]:
        with contextlib.ExitStack() as modes:
            modes.enter_context(self.memory.watching())
            modes.enter_context(_host_memory_apart(self.memory))
            if not isinstance(op, _OUTSIDE):
                modes.enter_context(self.fake_mode)
                modes.enter_context(self.memory)
                modes.enter_context(FirstPositions(_is_fake))
                modes.enter_context(as_on(self.run.graph.init_mesh.device))
            # Saving is not part of every step.
            if position.step == MEASURED_STEP and not isinstance(op, ops.SaveCheckpoint | ops.ExportHf):
                recorder = self.collectives.setdefault((op.name, position.micro_step), CollectiveRecorder())
                modes.enter_context(recorder)
            yield

    def _draw(self, op: ops.InitWeights | ops.LoadWeights, position: Position) -> None:
        """Draw weights as a run does, after the check that nothing stays unset. Reads no file."""
        in_files: set[str] = set()
        if isinstance(op, ops.LoadWeights):
            in_files.update(name for name, _ in self.model.named_parameters())
            in_files.difference_update(op.new if isinstance(op, ops.LoadBase) else ())
        for name in unset_tensors(self._pristine()):
            if name not in in_files:
                raise unset_error(name)
        # They are drawn in CPU memory, for any device.
        with self._modes(op, position), self.memory.looking_away():
            # A block's offset needs values to compute; its shape was settled when it was sharded.
            draw(self._pristine(), seed=op.seed, keep=lambda *_: None, of=_has_parameters_or_children)
        self.state.put(Weights.of(self.model))

    def _compile(self, op: ops.CompileModules) -> None:
        compiler = NameOnlyCompiler(self.fake_mode, self.memory.looking_away)
        own = held(self.state.get(Pipeline), op.modules) if op.fuses else ()
        for fqn in own:
            compiler.compile(self.model.get_submodule(fqn), op)
        if op.loss:
            compile = functools.partial(compiler.compiled, op=op) if op.fuses else lambda function: function
            self.state.put(CompiledGraphs(num_modules=len(own), loss=FusedLoss(compile)))

    def _pristine(self) -> nn.Module:
        """The rehearsed layers of the model as they were built."""
        pristine: nn.Module = fresh_copy(self.model)
        drop_layers(pristine, self.dropped)
        return pristine

    def _step_optimizer(self, op: ops.StepOptimizer, position: Position) -> None:
        """A run's step. Counts the extra memory that the op declares, not what a CPU takes."""
        optimizer = self.state[Optimizer]
        with self._modes(op, position):
            self._allocate_copies()
            with self.memory.looking_away():
                optimizer.step()
            self.memory.set_purpose("optimizer state")
            for name, parameter in self.model.named_parameters():
                for state in optimizer.state[parameter].values():
                    self.memory.follow((local_of(state),))
                    self._own([(name, state)])
            optimizer.zero_grad(set_to_none=True)
        self.state.put(Update(position.step))

    def _allocate_copies(self) -> None:
        """Allocate and free the temporaries of an optimizer step without a fused kernel."""
        if isinstance(optimizer := self.state[Optimizer], Muon):
            torch.empty(optimizer.round_bytes(), dtype=torch.uint8)
        (op,) = (op for op in self.run.graph.setup if isinstance(op, ops.BuildOptimizer))
        parameters = dict(self.model.named_parameters())
        for group in op.groups:
            own = op.settings_of(group)
            members = [(name, local_of(parameters[name])) for name in group.parameters if name in parameters]
            for _, part in members:
                # One after the other: the largest counts.
                torch.empty(own.update_bytes(part.shape, element=part.element_size()), dtype=torch.uint8)
            is_loop = op.implementation_on("cuda") == "for_loop"
            apart = [[member] for member in members] if is_loop else [members]
            for together in apart:
                copies = [(name, torch.empty_like(one)) for name, one in together * op.num_copies(group)]
                # One after the other, they take no more memory in a longer stack.
                self._own(() if is_loop else copies)
                del copies

    def _mark(self, layer: nn.Module, fqn: str, *, is_last: bool) -> None:
        """Make forward and backward of a layer segments of their own, and visits."""

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

        # Parameters that FSDP gathers for the layer belong to the visit, not to the segment, whose name means
        # that the layer runs.
        layer.register_forward_pre_hook(arrive, prepend=True)
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)

    def _enter(self, segment: str) -> None:
        if self.memory.is_measuring:
            self.memory.enter_segment(segment + self._part)

    def _name_storages(self, op: Op) -> None:
        """Relabel the storages that turned out to be gradients."""
        if isinstance(op, ops.Backward | ops.ComputeWeightGradients):
            found = (parameter.grad for parameter in self.model.parameters())
            self.memory.relabel((local_of(one) for one in found if one is not None), purpose="gradients")


@contextlib.contextmanager
def _host_memory_apart(memory: MemoryTracer) -> Iterator[None]:
    """Inputs of modules that wait in the host's memory take none of a device."""
    before = offloading.host_memory
    offloading.host_memory = memory.looking_away
    try:
        yield
    finally:
        offloading.host_memory = before


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def _answer_positions(module: nn.Module) -> None:
    """Answer for values when backward recomputes a module, too: modes are not active there."""
    inner = module.forward

    @functools.wraps(inner)
    def forward(*arguments: Any, **keywords: Any) -> Any:
        with FirstPositions(_is_fake):
            return inner(*arguments, **keywords)

    module.forward = forward


def _has_parameters_or_children(module: nn.Module) -> bool:
    """Rotary tables and the like are computed from values, which a rehearsal does not have.

    A module that contains others is initialized once more after each of those.
    """
    return any(True for _ in module.children()) or any(True for _ in module.parameters())


"""Ops that a rehearsal handles differently from the torch backend."""
RehearsalBackend.handlers = {**TorchBackend.handlers, **bind_all(PLAYED, is_whole=False)}
