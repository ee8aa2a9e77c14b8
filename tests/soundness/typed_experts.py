"""A mixture's layer in types that share nothing with planc's: those of spmd_types.

They say of a tensor, for the ranks of each mesh dim, how its value and its gradient differ among them. Every
operation infers the types of its results, or refuses those that it is given. The layer here is written by
hand; where ranks exchange values, and what is summed over which ranks, is what a graph says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import spmd_types as spmd
import torch
import torch.distributed as dist
from spmd_types import checker
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from planc.graph.graph import Graph
from planc.graph.ops import (
    AllReduceGradients,
    ClipGradients,
    FullyShard,
    MoveBiases,
    ReduceMetrics,
    ShardTensorParallel,
    SumRoutes,
    SyncGradients,
)
from planc.styles import BY_NAME
from planc.styles.edges import At, Distribution, Edge
from planc.vocab import ExpertDim, GroupDim, MeshDim, Partial, Replicate, Shard

LAYER = "model.layers.1"
NORM, MLP = f"{LAYER}.post_attention_layernorm", f"{LAYER}.mlp"
ROUTER, EXPERTS = f"{MLP}.gate", f"{MLP}.experts"
NUM_SEQUENCES, LENGTH, WIDTH, NUM_EXPERTS, PER_TOKEN, FEATURES = 2, 8, 4, 8, 2, 4
HELD = {
    (Replicate(), Replicate()): spmd.I,
    (Replicate(), Partial()): spmd.R,
    (Partial(), Replicate()): spmd.P,
}
"""The type of a value and its gradient that planc's edges place so; of a shard, `S`."""

Types = dict[str, Any]


@dataclass(frozen=True)
class Typed:
    """A graph's statements on its layouts, by the mesh dims of the layer."""

    graph: Graph

    @property
    def sizes(self) -> dict[str, int]:
        """Every mesh dim, outermost first. Those that experts are on have two factors each: an inner one,
        whose ranks hold different experts, and the rest."""
        experts = self.graph.experts
        left = experts.size if experts else 1
        sizes: dict[str, int] = {}
        for dim in reversed([one for one in MeshDim if one is not MeshDim.PP]):
            size = self.graph.size(dim)
            if experts and dim in experts.over:
                inner = gcd(size, left)
                left //= inner
                sizes[_inner(dim)], size = inner, size // inner
            sizes[dim.value] = size
        return dict(reversed(sizes.items()))

    @property
    def ep(self) -> tuple[str, ...]:
        """The mesh dims whose ranks hold different experts."""
        return tuple(map(_inner, self.graph.experts.over)) if self.graph.experts else ()

    def dims(self, over: Iterable[GroupDim]) -> tuple[str, ...]:
        """The mesh dims that a graph's stand for."""
        split = self.graph.experts.over if self.graph.experts else ()

        def parts(dim: GroupDim) -> tuple[str, ...]:
            match dim:
                case ExpertDim.EFSDP:
                    return tuple(one.value for one in split)
                case ExpertDim.EP:
                    return self.ep
                case _:
                    return (dim.value, _inner(dim)) if dim in split else (dim.value,)

        return tuple(name for dim in over for name in parts(dim))

    @property
    def data(self) -> tuple[str, ...]:
        """The mesh dims whose ranks have different parts of the batch."""
        (op,) = (op for op in self.graph.ops() if isinstance(op, ReduceMetrics))
        return self.dims(op.over)

    @property
    def tp(self) -> tuple[str, ...]:
        return self.dims((MeshDim.TP,))

    @property
    def routed(self) -> tuple[str, ...]:
        """The mesh dims whose ranks route different tokens: those of tp do if they send experts theirs."""
        has_tp = self.graph.experts is not None and MeshDim.TP in self.graph.experts.over
        return (*self.data, *self.tp) if has_tp else self.data

    def has_shards(self, fqn: str) -> bool:
        """Whether a module computes with shards of sequences."""
        return any(op.use.computes_on == Shard(1) for op in self.styles(fqn))

    def styles(self, fqn: str) -> Iterator[ShardTensorParallel]:
        return (op for op in self.graph.setup if isinstance(op, ShardTensorParallel) and fqn in op.modules)

    def edges(self, fqn: str, at: At) -> Iterator[Edge]:
        return (edge for op in self.styles(fqn) for edge in op.edges if edge.at is at)

    def of_parameter(self, fqn: str, name: str) -> Types:
        """The types of a parameter that computes."""
        types = dict.fromkeys(self.data, spmd.R) | dict.fromkeys(self.tp, spmd.I)
        if self.graph.experts and fqn in self.graph.experts.modules:
            types |= dict.fromkeys(self.routed, spmd.R) | dict.fromkeys(self.ep, spmd.V)
        for op in self.styles(fqn):
            placement = dict(op.parameters).get(name)
            if isinstance(placement, Replicate):
                is_summed = BY_NAME[op.use.style].reduces_parameter_gradients
                types |= dict.fromkeys(self.tp, spmd.R if is_summed else spmd.I)
            elif placement is not None:
                types |= dict.fromkeys(self.tp, spmd.V)
        return types

    def sums(self, fqn: str) -> tuple[str, ...]:
        """The mesh dims that the gradients of a module's parameters are summed over."""
        units = [op for op in self.graph.setup if isinstance(op, FullyShard)]
        inside = [(len(one), op) for op in units for group in op.groups for one in group if _holds(one, fqn)]
        over = self.over(AllReduceGradients)
        if inside:
            _, unit = max(inside, key=lambda pair: pair[0])
            over = self.dims((*unit.shard_over, *unit.replicate_over))
        is_synced = any(BY_NAME[op.use.style].reduces_parameter_gradients for op in self.styles(fqn))
        return (*over, *(self.over(SyncGradients) if is_synced else ()))

    def over(self, kind: type[Any]) -> tuple[str, ...]:
        """The mesh dims that an op of a step communicates over; none if there is no such op."""
        ops = (op for op in self.graph.ops() if isinstance(op, kind))
        return tuple(dim for op in ops for dim in self.dims(op.over))

    def reduced(self, value: Tensor, dim: str, *, dst: Any) -> Tensor:
        """The sum over a mesh dim of what ranks have summands of."""
        if self.sizes[dim] == 1:
            return value
        held = spmd.get_axis_local_type(value, dim)
        if held is not spmd.P:
            # spmd_types would take each rank's own value for a summand.
            raise spmd.SpmdTypeError(f"ranks of {dim} sum what is {held.value} on them")
        return spmd.all_reduce(value, dim, src=spmd.P, dst=dst)


def _inner(dim: MeshDim) -> str:
    return f"ep of {dim}"


def _holds(outer: str, fqn: str) -> bool:
    return outer in ("", fqn) or fqn.startswith(f"{outer}.")


@contextmanager
def _checked_types(typed: Typed) -> Iterator[None]:
    """A process group that sends nothing, in which every tensor has a type."""
    sizes = typed.sizes
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=prod(sizes.values()))
    try:
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        with spmd.set_current_mesh(mesh), checker.typecheck():
            yield
    finally:
        dist.destroy_process_group()


def assert_sound(graph: Graph, *, shared: Sequence[MeshDim] = ()) -> None:
    """SpmdTypeError if the layouts of a step contradict each other, or leave anything without its sum.

    `shared` are the mesh dims whose ranks share the sets of tokens that a balance loss is of.
    """
    typed = Typed(graph)
    with _checked_types(typed):
        layer = _Layer(typed)
        loss = layer.loss()
        # Refuses a loss that is the same on all ranks, or each rank's own.
        loss.backward(retain_graph=True)
        _assert_norm(typed, [layer.summed(*key) for key in layer.parameters])
        _assert_balance(typed, layer, typed.dims(shared))


class _Layer:
    """The half of a layer with experts: its forward, and its parameters with their types."""

    def __init__(self, typed: Typed) -> None:
        self.typed = typed
        own = NUM_EXPERTS // prod(typed.sizes[one] for one in typed.ep)
        of_experts = (op for op in typed.styles(EXPERTS) if not isinstance(op.use.computes_on, Shard))
        features = FEATURES // (typed.sizes["tp"] if any(of_experts) else 1)
        self.parameters: dict[tuple[str, str], tuple[Tensor, Types]] = {}
        self.norm = self._parameter(NORM, "weight", WIDTH)
        self.router = self._parameter(ROUTER, "weight", NUM_EXPERTS, WIDTH)
        self.enters = self._parameter(EXPERTS, "gate_up_proj", own, WIDTH, features)
        self.leaves = self._parameter(EXPERTS, "down_proj", own, features, WIDTH)

    def _parameter(self, fqn: str, name: str, *shape: int) -> Tensor:
        types = self.typed.of_parameter(fqn, name)
        made = spmd.assert_type(torch.randn(shape), types).requires_grad_()
        self.parameters[fqn, name] = made, types
        return made

    def loss(self) -> Tensor:
        """A rank's share of the loss of its tokens."""
        residual = self._residual()
        squares = residual.square().mean(-1, keepdim=True)
        hidden = self._cross(MLP, At.INPUT, residual * squares.rsqrt() * self.norm)
        logits = (hidden @ self.router.T).flatten(0, 1)
        self.probabilities = logits.softmax(-1)
        weights, self.chosen = self.probabilities.topk(PER_TOKEN, -1)
        result = residual + self._cross(MLP, At.OUTPUT, self._experts(hidden, weights))
        spmd.assert_type(result, self.of_residual)
        loss = result.square().sum()
        for dim, held in self.of_residual.items():
            loss = loss if held is spmd.I else _summands(loss, dim)
        return loss

    def _residual(self) -> Tensor:
        """[sequences, tokens, features]: shards of sequences, or as the first edge that meets it has it."""
        edges = (*self.typed.edges(MLP, At.INPUT), *self.typed.edges(EXPERTS, At.INPUT))
        over_tp = _held(edges[0].arriving) if edges else spmd.I
        is_part = isinstance(over_tp, spmd.Shard) or (not edges and self.typed.has_shards(NORM))
        over_tp = spmd.V if is_part else over_tp
        self.of_residual = dict.fromkeys(self.typed.data, spmd.V) | dict.fromkeys(self.typed.tp, over_tp)
        length = LENGTH // (prod(self.typed.sizes[dim] for dim in self.typed.tp) if is_part else 1)
        return spmd.assert_type(torch.randn(NUM_SEQUENCES, length, WIDTH), self.of_residual)

    def _experts(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """The sum of the outputs of each token's experts, which other ranks of ep compute."""
        tokens = self._cross(EXPERTS, At.INPUT, hidden).flatten(0, 1)
        weights = self._cross(EXPERTS, At.ROUTING_WEIGHTS, weights)
        order = self.chosen.flatten().argsort(stable=True)
        for dim in self.typed.tp:
            if self.typed.sizes[dim] > 1 and spmd.get_axis_local_type(order, dim) is spmd.I:
                # Numbers have no gradient that ranks could have parts of.
                order = spmd.redistribute(order, dim, src=spmd.I, dst=spmd.R)
        rows = self._exchanged(tokens[order // PER_TOKEN])
        # Ranks of a fake group receive as many rows as they send.
        inner = rows.view(len(self.enters), -1, WIDTH) @ self.enters
        outputs = inner.sigmoid() @ self.leaves
        if self.parameters[EXPERTS, "down_proj"][1]["tp"] is spmd.V:
            # Each rank has contracted its own features.
            outputs = _summands(outputs, "tp")
        outputs = self._exchanged(outputs.flatten(0, 1)) * weights.flatten()[order].unsqueeze(-1)
        is_of_token = torch.arange(len(tokens)).unsqueeze(-1) == order // PER_TOKEN
        combined = is_of_token.float() @ outputs
        return self._cross(EXPERTS, At.OUTPUT, combined).view(hidden.shape)

    def _exchanged(self, rows: Tensor) -> Tensor:
        """The rows for this rank's experts, of other ranks; over one mesh dim after the other."""
        for dim in self.typed.ep:
            if self.typed.sizes[dim] > 1:
                rows = spmd.all_to_all(rows.contiguous(), dim, src=spmd.S(0), dst=spmd.S(0))
        return rows

    def _cross(self, fqn: str, at: At, value: Tensor) -> Tensor:
        """A value behind the edges where it enters or leaves a module."""
        for edge in self.typed.edges(fqn, at):
            held = _held(edge.arriving), _held(edge.leaving)
            value = spmd.redistribute(value, "tp", src=held[0], dst=held[1])
        return value

    def summed(self, fqn: str, name: str) -> Tensor:
        """A parameter's gradient after the graph's sums: each rank has its own part, or all have the same."""
        parameter, types = self.parameters[fqn, name]
        of_gradient = {dim: held.backward_type() for dim, held in types.items()}
        gradient = spmd.assert_type(torch.randn(parameter.shape), of_gradient)
        for dim in self.typed.sums(fqn):
            gradient = self.typed.reduced(gradient, dim, dst=spmd.I)
        whole = {dim: spmd.V if held is spmd.V else spmd.I for dim, held in types.items()}
        return spmd.assert_type(gradient, whole)


def _held(distribution: Distribution) -> Any:
    match distribution.value:
        case Shard(tensor_dim):
            return spmd.S(tensor_dim)
        case value:
            return HELD[value, distribution.gradient]


def _summands(value: Tensor, dim: str) -> Tensor:
    """Each rank's own value as a summand of theirs all."""
    return spmd.reinterpret(value, dim, src=spmd.V, dst=spmd.P)


def _assert_norm(typed: Typed, gradients: Sequence[Tensor]) -> None:
    """The square of the global norm is the same on all ranks."""
    for gradient in gradients:
        squared = gradient.square().sum()
        for dim in typed.over(ClipGradients):
            if typed.sizes[dim] > 1 and spmd.get_axis_local_type(squared, dim) is spmd.V:
                squared = typed.reduced(_summands(squared, dim), dim, dst=spmd.I)
        spmd.assert_type(squared, dict.fromkeys(typed.sizes, spmd.I))


def _assert_balance(typed: Typed, layer: _Layer, shared: Sequence[str]) -> None:
    """The balance loss is of the counts of whole sets of tokens, and biases move by those of the step."""
    chosen, probabilities = layer.chosen, layer.probabilities.sum(0)
    counts = (chosen.unsqueeze(-1) == torch.arange(NUM_EXPERTS)).sum((0, 1)).float()
    of_step = counts
    for dim in shared:
        if typed.sizes[dim] > 1:
            counts, probabilities = _summands(counts, dim), _summands(probabilities, dim)
    for dim in typed.over(SumRoutes):
        counts = typed.reduced(counts, dim, dst=spmd.R)
    loss = (counts / counts.sum().square() * probabilities).sum()
    for dim in typed.routed:
        if typed.sizes[dim] > 1 and spmd.get_axis_local_type(loss, dim) is spmd.V:
            loss = _summands(loss, dim)
    loss.backward()
    if any(isinstance(op, MoveBiases) for op in typed.graph.ops()):
        for dim in typed.routed:
            of_step = _summands(of_step, dim) if typed.sizes[dim] > 1 else of_step
        for dim in typed.over(MoveBiases):
            of_step = typed.reduced(of_step, dim, dst=spmd.I)
        spmd.assert_type((of_step.mean() - of_step).sign(), dict.fromkeys(typed.routed, spmd.I))
