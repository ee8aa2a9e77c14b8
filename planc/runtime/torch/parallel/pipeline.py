"""A rank's stages of a pipeline: the modules that it lacks pass on what they get."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed import ProcessGroup

from planc.graph.ops import Accumulate, SplitPipeline
from planc.pipelining.orders import Order, rank_of
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.deferred_weights import defer_weight
from planc.runtime.torch.parallel.layer_outputs import LayerOutputs
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.receives import Receives, following
from planc.runtime.torch.parallel.stand_ins import Lengths, edges, lengths_of, stand_ins
from planc.runtime.torch.parallel.ties import tied_parameters
from planc.runtime.torch.run import Run
from planc.vocab import parent_of


@dataclass(slots=True)
class Hidden:
    """One micro-batch's hidden states at a stage; None where it has no neighbor."""

    stage: int
    micro_step: int = 0
    received: Tensor | None = None
    sent: Tensor | None = None
    """Until it is sent: backward needs no more than its place in the graph."""
    origin: GradientEdge | None = None
    """The place in autograd's graph of what was sent; None in an evaluation."""
    loss: Tensor | None = None
    """At the last stage, until its backward."""
    gradient: Tensor | None = None
    """The gradient of what was sent, until its backward."""
    recalls: list[Callable[[], None]] = field(default_factory=list)
    """Give modules back what they knew in the forward: backward may compute them again, after others."""
    weights: list[Tensor] = field(default_factory=list)
    """Tensors whose backward computes the gradients of weights that were deferred: see `deferred_weights`."""

    def take_sent(self) -> Tensor:
        """Return the output to send, which this will not hold."""
        assert self.sent is not None, "the layers of the stage ran"
        found, self.sent = self.sent, None
        if found.requires_grad:
            self.origin = get_gradient_edge(found)
        return found.detach()


@dataclass(slots=True)
class Pipeline:
    """The state of a rank's stages. Activations and gradients have channels apart: NCCL has no tags."""

    op: SplitPipeline
    lengths: Lengths
    num_ranks: int
    rank: int
    order: Order
    """The actions of this rank in a step."""
    activations: ProcessGroup
    gradients: ProcessGroup
    ends: ProcessGroup | None = None
    """The ranks of the first and the last stage, if they share weights and this is one of them."""
    now: Hidden = field(default_factory=lambda: Hidden(0))
    """The hidden states of the forward or backward under way."""
    in_flight: dict[tuple[int, int], Hidden] = field(default_factory=dict)
    """Hidden states by stage and micro-batch."""
    deferred: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    """The gradients of weights that a backward has deferred, by stage and micro-batch."""
    sends: Mapping[str, deque[tuple[dist.Work, Tensor]]] = field(
        default_factory=lambda: {"activations": deque(), "gradients": deque()}
    )
    """Under way, oldest first: a tensor must outlive its send."""
    receives: Receives = field(default_factory=Receives)
    outputs: LayerOutputs | None = None
    """None until this rank has its modules."""
    copies: dict[str, str] = field(default_factory=dict)
    """The tied weights of this rank whose first name is in another rank's stage: by that name, their own.
    Here too they go by the first, under a stand-in, once they have memory: see `hold_copies`."""
    prefetching: set[int] = field(default_factory=set)
    """The stages whose units of FSDP know which to gather ahead in backward."""
    _stages: dict[str, int] = field(init=False)
    """The stage of each module."""
    _deferring: frozenset[str] = field(init=False)
    """The modules that defer gradients."""

    def __post_init__(self) -> None:
        self._deferring = frozenset(self.op.deferred)
        self._stages = {name: stage for stage, names in enumerate(self.op.stages) for name in names}
        for first, *others in self.op.ties:
            if not self.has(first) and (own := [name for name in others if self.has(name)]):
                self.copies[first] = own[0]

    @property
    def ties(self) -> tuple[str, ...]:
        """The first names of the weights that this rank shares with that of the other end."""
        return tuple(first for first, *_ in self.op.ties if self.has(first))

    @property
    def num_stages(self) -> int:
        return len(self.op.stages)

    @property
    def own(self) -> range:
        """The stages of this rank."""
        return range(self.rank, self.num_stages, self.num_ranks)

    def stage_of(self, name: str) -> int | None:
        """The stage that has a module or parameter; None for what every stage has, as the whole model.

        Of a tied weight it is this rank's stage, if it has one.
        """
        return self._stage_of(self.copies.get(name, name))

    def _stage_of(self, name: str) -> int | None:
        while name and name not in self._stages:
            name = parent_of(name)
        return self._stages.get(name)

    def has(self, name: str) -> bool:
        """Whether a module or parameter is on this rank."""
        stage = self.stage_of(name)
        return stage is None or stage in self.own

    def defers(self, name: str) -> bool:
        """Whether a parameter's gradient comes after its backward."""
        module, _, own = name.rpartition(".")
        return own == "weight" and module in self._deferring

    def rank_of(self, name: str) -> int | None:
        """The pp rank that has a module or parameter; None for what every one has.

        Of a tied weight it is the first stage's.
        """
        stage = self._stage_of(name)
        return None if stage is None else owner(self, stage)

    def is_last(self, stage: int) -> bool:
        return stage == self.num_stages - 1

    def finish_forward(self, at: Position, *, loss: Tensor | None = None) -> None:
        """Keep what the backward of this micro-batch needs."""
        self.now.loss = loss
        self.in_flight[at.stage, at.micro_step] = self.now

    def begin_backward(self, at: Position) -> Hidden:
        """Take it back."""
        key = at.stage, at.micro_step
        hidden = self.now = self.in_flight.pop(key)
        # Modules that are recomputed would add theirs again.
        self.deferred[key], hidden.weights = hidden.weights, []
        return hidden

    def new_hidden(self, device: torch.device) -> Tensor:
        """An empty message: [micro batch, local sequence, hidden]."""
        return torch.empty(self.op.shape, dtype=TORCH_DTYPES[self.op.dtype], device=device)


def split_pipeline(run: Run, op: SplitPipeline, mesh: Mesh, model: nn.Module) -> Pipeline:
    """Replace the modules of other ranks' stages, so their parameters never exist on this rank."""
    (pp,) = op.over
    columns = mesh.columns(pp)
    # The mesh's own group waits for half an hour, whatever the plan says.
    timeout = timedelta(seconds=run.graph.init_mesh.timeout_seconds)
    activations, gradients = (_group(columns, timeout=timeout) for _ in range(2))
    assert activations is not None and gradients is not None, "every rank is in a column"
    loop = next(one for one in run.graph.step if isinstance(one, Accumulate))
    pipeline = Pipeline(
        op=op,
        lengths=lengths_of(run.graph, op),
        num_ranks=run.graph.size(pp),
        rank=run.coordinate(pp),
        order=loop.orders[run.coordinate(pp)],
        activations=activations,
        gradients=gradients,
        ends=_group([[column[0], column[-1]] for column in columns], timeout=timeout) if op.ties else None,
    )
    if dist.get_backend(activations) == dist.Backend.GLOO:
        # gloo sends a message at once if its receiver has asked for it. Else the two exchange notes first,
        # for as much CPU time as the message takes. NCCL works off a queue: a receive in it that waits for
        # another rank would keep back the sends after it, which that rank may wait for.
        pipeline.receives.following = following(pipeline.order, num_stages=pipeline.num_stages)
    _refuse_other_ties(model, pipeline)
    _Stages(model, pipeline, stand_ins(pipeline, run.device))
    pipeline.outputs = LayerOutputs(model, pipeline, num_micro_batches=loop.times, device=run.device)
    for name in held(pipeline, op.deferred):
        defer_weight(model.get_submodule(name), pipeline)
    return pipeline


def held(pipeline: Pipeline | None, names: Iterable[str]) -> tuple[str, ...]:
    """The modules or parameters that are on this rank: all of those named, without a pipeline."""
    return tuple(name for name in names if pipeline is None or pipeline.has(name))


def _refuse_other_ties(model: nn.Module, pipeline: Pipeline) -> None:
    """RunError if stages share a weight that the graph does not know of: its copies would drift apart."""
    for tie in tied_parameters(model):
        if len({pipeline.stage_of(name) for name in tie}) > 1 and tie not in pipeline.op.ties:
            raise RunError(
                f"{' and '.join(tie)} are one parameter, in several stages, and not in this graph",
                help="compile the plan again with this version of transformers",
                span=pipeline.op.span,
            )


def _group(ranks: list[list[int]], *, timeout: timedelta) -> ProcessGroup | None:
    """A new group of these ranks with this one, if there is one; every rank makes all of them."""
    found, _ = dist.new_subgroups_by_enumeration(ranks, timeout=timeout)  # type: ignore[no-untyped-call]
    return found if isinstance(found, ProcessGroup) else None


class _Stages:
    """Shows the model's forward the modules of one stage.

    Between forwards all modules of the rank are in their places: names, FSDP's units and checkpoints do not
    know of stages. FSDP's own hooks of the model run outside of these.
    """

    def __init__(self, model: nn.Module, pipeline: Pipeline, pass_on: Mapping[str, nn.Module]) -> None:
        """`pass_on` are what takes the places of modules in other stages."""
        self._pipeline = pipeline
        names = [*chain(*pipeline.op.stages)]
        self._places = {name: _place(model, name) for name in names}
        for name in names:
            if not pipeline.has(name):
                self._put(name, pass_on[name])
        at_rest = {name: parent[child] for name, (parent, child) in self._places.items()}
        layers = [name for name in names if name.startswith(f"{pipeline.op.blocks}.")]
        shown = {stage: {**pass_on, **dict(edges(pipeline, stage, layers))} for stage in pipeline.own}
        self._changes = {
            stage: {
                name: (at_rest[name], module)
                for name, module in modules.items()
                if name not in pipeline.op.stages[stage] and module is not at_rest[name]
            }
            for stage, modules in shown.items()
        }
        model.register_forward_pre_hook(self._show)
        model.register_forward_hook(self._restore, always_call=True)

    def _show(self, model: nn.Module, arguments: object) -> None:
        for name, (_, module) in self._changes[self._pipeline.now.stage].items():
            self._put(name, module)

    def _restore(self, model: nn.Module, arguments: object, output: object) -> None:
        for name, (module, _) in self._changes[self._pipeline.now.stage].items():
            self._put(name, module)

    def _put(self, name: str, module: nn.Module | None) -> None:
        parent, child = self._places[name]
        parent[child] = module


def _place(model: nn.Module, name: str) -> tuple[dict[str, nn.Module | None], str]:
    """Return the parent's dictionary that holds a module, and its key."""
    parent, _, child = name.rpartition(".")
    return model.get_submodule(parent)._modules, child


def hold_copies(model: nn.Module, pipeline: Pipeline) -> None:
    """Give the stand-ins of another stage's modules the tied weights of this one.

    So a weight has one name on all ranks, by which it is drawn, loaded, trained and saved. FSDP has sharded
    it by then: it must not find it in two units.
    """
    for first, own in pipeline.copies.items():
        module = model
        *path, name = first.split(".")
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        setattr(module, name, model.get_parameter(own))


def owner(pipeline: Pipeline, stage: int) -> int:
    """The pp rank of a stage."""
    return rank_of(stage, num_ranks=pipeline.num_ranks)
