"""Experts on different ranks: tokens go to the ranks that hold their experts, and results come back.

Each rank sends a row for each token and expert. The weighted sum of a token's results is its own rank's, so
the gradients of routers are of that rank's tokens, like those of all weights that are not experts'.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from planc.graph.ops import CapExperts, OpenData, ShardExperts
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import compute_locally, computes_locally
from planc.runtime.torch.private import all_to_all_autograd, wait_tensor
from planc.runtime.torch.run import Run
from planc.vocab import ExpertDim


def shard_experts(
    run: Run, op: ShardExperts, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Give this rank its experts of each module, and let the module's forward dispatch tokens."""
    dispatch_with(Dispatch, run, op, mesh, model, pipeline)


def dispatch_with(
    kind: type[Dispatch], run: Run, op: ShardExperts, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Shard experts, and dispatch to them by this kind of dispatch."""
    ranks = mesh.of_experts(run)
    ep = ranks[ExpertDim.EP.value]
    for fqn in held(pipeline, op.modules):
        experts = model.get_submodule(fqn)
        for name, parameter in list(experts.named_parameters(recurse=False)):
            experts.register_parameter(name, _of_rank(parameter, ranks))
        if not computes_locally(experts):
            compute_locally(experts, ep, sums_whole=False)
        _dispatch(experts, kind, ep.get_group(), capacity_of(run, fqn))


def _of_rank(parameter: nn.Parameter, ranks: DeviceMesh) -> nn.Parameter:
    """A parameter of all experts, still on meta, of which a rank has its experts', with its features."""
    if not isinstance(parameter, DTensor):
        sharded = distribute_tensor(parameter, ranks[ExpertDim.EP.value], (Shard(0),), src_data_rank=None)
    else:
        names = (ExpertDim.EP.value, *(parameter.device_mesh.mesh_dim_names or ()))
        # One mesh for both: the one of tp has no factors of experts.
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        placements = (Shard(0), *parameter.placements)
        sharded = distribute_tensor(whole, ranks[names], placements, src_data_rank=None)
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)


def cap_experts(run: Run, op: CapExperts, model: nn.Module, pipeline: Pipeline | None) -> None:
    """Let experts that this rank holds all of take no more tokens than their capacity.

    They compute the others for nothing, with weight 0. A dispatch does not send them.
    """
    dispatched = run.graph.experts.modules if run.graph.experts else ()
    for fqn in held(pipeline, (fqn for fqn in op.modules if fqn not in dispatched)):
        experts, capacity = model.get_submodule(fqn), capacity_of(run, fqn)
        assert capacity is not None, "the op is of these experts"
        _replace(experts, _Capped(experts.forward, int(experts.num_experts), capacity))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Capped:
    """The forward of a module with all experts, that take no more than their capacity."""

    inner: Callable[[Tensor, Tensor, Tensor], Tensor]
    num_experts: int
    capacity: Capacity

    def __call__(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        is_taken = self.capacity.is_taken(chosen, self.num_experts)
        return self.inner(tokens, chosen, weights * is_taken.view_as(chosen))


def _dispatch(
    experts: nn.Module, kind: type[Dispatch], group: ProcessGroup, capacity: Capacity | None
) -> None:
    """Let a module of experts compute what all ranks of the group send it, with the experts of this rank."""
    inner, number = experts.forward, int(experts.num_experts)  # type: ignore[arg-type]
    dispatch = kind(inner, number, group)
    if capacity is not None:
        dispatch = CappedDispatch(inner, number, group, capacity)
    _replace(experts, dispatch)
    # The module's own code counts the experts that it has.
    experts.num_experts = dispatch.num_local  # type: ignore[assignment]


def _replace(experts: nn.Module, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Let a module compute a function of its tokens, their experts, and the experts' weights."""
    parameters = inspect.signature(experts.forward)

    def forward(*arguments: Any, **keywords: Any) -> Tensor:
        return function(*parameters.bind(*arguments, **keywords).args)

    experts.forward = forward


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The forward of a module of experts, of which each rank of a group holds an equal number."""

    inner: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Computes rows with this rank's experts, by their numbers among them."""
    num_experts: int
    group: ProcessGroup

    @property
    def num_ranks(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def num_local(self) -> int:
        """The experts of each rank."""
        return self.num_experts // self.num_ranks

    def __call__(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the outputs of each token's experts: [tokens, features].

        `chosen` and `weights` are [tokens, experts per token].
        """
        per_token = chosen.shape[-1]
        of_row = chosen.reshape(-1)
        # Stable, so a rank computes equal rows in the same order in each forward.
        order = torch.argsort(of_row, stable=True)
        sent = self._counts(of_row)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        num_sent, num_received = self.num_rows(sent, received, of_all=len(of_row))
        rows = self._exchange(tokens[order // per_token], num_sent, num_received)
        results = self._exchange(self._computed(rows, received), num_received, num_sent)
        in_order = torch.empty_like(results).index_copy(0, order, results)
        of_token = in_order.view(*chosen.shape, -1)
        return (of_token * weights.unsqueeze(-1)).sum(-2).to(tokens.dtype)

    def _counts(self, of_row: Tensor) -> Tensor:
        """The rows for each expert: [ranks, experts of a rank]. `bincount` would wait for a device."""
        counts = of_row.new_zeros(self.num_experts)
        counts.scatter_add_(0, of_row, torch.ones_like(of_row))
        return counts.view(self.num_ranks, self.num_local)

    def num_rows(self, sent: Tensor, received: Tensor, *, of_all: int) -> tuple[Sequence[int], Sequence[int]]:
        """The rows, of this rank's `of_all`, that go to each rank, and those that it receives from each.

        The one wait of the host: a collective needs to know them.
        """
        num_sent, num_received = torch.stack((sent.sum(1), received.sum(1))).tolist()
        return num_sent, num_received

    def _computed(self, rows: Tensor, received: Tensor) -> Tensor:
        """The experts' outputs for the rows that this rank received, in their order."""
        if not len(rows):
            # Backward must pass here: the other ranks take part in its exchange, and in FSDP's reductions.
            nothing = self._inner(rows.sum(0, keepdim=True), torch.zeros_like(received[:1, :1]))
            return nothing[:0]
        numbers = torch.arange(self.num_local, device=rows.device).repeat(self.num_ranks)
        of_row = numbers.repeat_interleave(received.flatten(), output_size=len(rows))
        return self._inner(rows, of_row.unsqueeze(-1))

    def _inner(self, rows: Tensor, numbers: Tensor) -> Tensor:
        return self.inner(rows, numbers, rows.new_ones(numbers.shape))

    def _exchange(self, rows: Tensor, num_sent: Sequence[int], num_received: Sequence[int]) -> Tensor:
        """The rows of all ranks for this one; differentiable."""
        received: Tensor = wait_tensor(
            all_to_all_autograd(rows.contiguous(), num_received, num_sent, self.group)
        )
        return received


@dataclass(frozen=True, slots=True)
class CappedDispatch(Dispatch):
    """A dispatch of equal messages: each rank sends every expert as many rows as it can take at most.

    Rows that no token fills are 0, and nothing reads their results. The host does not wait for counts.
    """

    capacity: Capacity

    def __call__(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the outputs of those of each token's experts that take it."""
        num_each = self.capacity.num_rows(chosen, self.num_experts) * self.capacity.num_sequences(chosen)
        num_rows = self.num_experts * num_each
        of_row = self.capacity.rows(chosen, self.num_experts)
        # The last row has the tokens that no expert takes.
        copies = tokens.repeat_interleave(chosen.shape[-1], 0)
        rows = tokens.new_zeros(num_rows + 1, tokens.shape[-1]).index_copy(0, of_row, copies)[:num_rows]
        equal = [num_rows // self.num_ranks] * self.num_ranks
        received = self._exchange(rows, equal, equal)
        numbers = torch.arange(self.num_local, device=rows.device).repeat_interleave(num_each)
        results = self._inner(received, numbers.repeat(self.num_ranks).unsqueeze(-1))
        returned = self._exchange(results, equal, equal)
        in_order = torch.cat((returned, returned.new_zeros(1, returned.shape[-1])))[of_row]
        of_token = in_order.view(*chosen.shape, -1)
        return (of_token * weights.unsqueeze(-1)).sum(-2).to(tokens.dtype)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a module's experts: those tokens of a sequence that choose them first, up to a number.

    `chosen` are [tokens, experts per token], of whole sequences: a sequence is on one rank whole, so its
    tokens are the same on every mesh.
    """

    op: CapExperts
    length: int
    """The tokens of a sequence."""

    def num_sequences(self, chosen: Tensor) -> int:
        return len(chosen) // self.length

    def num_rows(self, chosen: Tensor, num_experts: int) -> int:
        """The most tokens that an expert takes of a sequence."""
        return self.op.num_rows(length=self.length, per_token=chosen.shape[-1], num_experts=num_experts)

    def is_taken(self, chosen: Tensor, num_experts: int) -> Tensor:
        """True where an expert takes the token that chose it: [sequences, tokens x experts per token]."""
        return self._places(chosen, num_experts) < self.num_rows(chosen, num_experts)

    def rows(self, chosen: Tensor, num_experts: int) -> Tensor:
        """The row of each token and expert among those of all experts, sequences and places; the one after
        the last for those that are not taken: [tokens x experts per token]."""
        num_rows, num_sequences = self.num_rows(chosen, num_experts), self.num_sequences(chosen)
        places = self._places(chosen, num_experts)
        sequences = torch.arange(num_sequences, device=chosen.device).unsqueeze(-1)
        rows = (chosen.view_as(places) * num_sequences + sequences) * num_rows + places
        return rows.where(places < num_rows, num_experts * num_sequences * num_rows).flatten()

    def num_dropped(self, chosen: Tensor, num_experts: int) -> Tensor:
        return self.is_taken(chosen, num_experts).logical_not().sum()

    def _places(self, chosen: Tensor, num_experts: int) -> Tensor:
        """The number of earlier tokens of the sequence that chose the same expert."""
        of_sequence = chosen.reshape(self.num_sequences(chosen), -1)
        order = torch.argsort(of_sequence, dim=-1, stable=True)
        counts = of_sequence.new_zeros(len(of_sequence), num_experts)
        counts.scatter_add_(1, of_sequence, torch.ones_like(of_sequence))
        first = (counts.cumsum(-1) - counts).gather(1, of_sequence.gather(1, order))
        in_order = torch.arange(of_sequence.shape[1], device=chosen.device) - first
        return torch.empty_like(in_order).scatter_(1, order, in_order)


def capacity_of(run: Run, fqn: str) -> Capacity | None:
    """The capacity of the experts of a module; None if they take all tokens."""
    op = run.graph.capacity
    if op is None or fqn not in op.modules:
        return None
    data = next(op for op in run.graph.setup if isinstance(op, OpenData))
    return Capacity(op, data.sequence_length)
