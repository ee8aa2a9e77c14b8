"""The losses that balance experts, as gradients of the routers' logits.

The loss of a set of tokens is E * sum over experts of (n_e / N) * (P_e / N): of its N tokens n_e choose an
expert, whose probabilities add up to P_e. The choices have no gradient, so each rank needs only their sums to
know the gradient of its own probabilities: integers, which are the same on every mesh.

No gradient is known before the forward of all tokens of a set has ended. Backward comes later: where experts
are called, `_Balanced` joins the logits to the graph, and its backward asks for what the sums gave.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planc.graph.ops import BalanceExperts, MoveBiases, SumRoutes
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.interpreter import Position
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.parallel.blocks import local_blocks
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch, TokenCount, Verdict, Weights
from planc.runtime.torch.training.expert_load import chosen_experts
from planc.vocab import MeshDim


@dataclass(slots=True)
class _Layer:
    """One router's choices in a micro-batch."""

    chosen: Tensor
    """[sets, E + 1], int64: the tokens of each expert, and all tokens."""
    probabilities: Tensor
    """[sets, E], float64: their sums, over this rank's tokens."""
    factors: Tensor | None = None
    """[sets, E]: the gradient of each probability; None until the choices are summed."""


class _Routes:
    """The routers' choices in one micro-batch."""

    def __init__(
        self, op: BalanceExperts, num_experts: Mapping[str, int], *, labels: Tensor, num_labels: Tensor
    ) -> None:
        """`num_experts` by module of experts, `labels` [B, local sequence], `num_labels` of the step."""
        self.op = op
        self.is_counted = (labels != IGNORED_LABEL).flatten()
        rows, length = labels.shape
        self.num_sets = max(1, rows // op.loss.num_sequences) if op.loss is not None else 1
        self.sets = torch.arange(self.num_sets, device=labels.device).repeat_interleave(
            rows * length // self.num_sets
        )
        sizes = [self.num_sets * (number + 1) for number in num_experts.values()]
        self.all_chosen = torch.zeros(sum(sizes), dtype=torch.int64, device=labels.device)
        self.z_factor = None if op.z_loss is None else op.z_loss / num_labels.clamp(min=1).double()
        self.z_loss = torch.zeros((), dtype=torch.float64, device=labels.device)
        self.layers = {
            experts: _Layer(
                part.view(self.num_sets, -1),
                torch.zeros(self.num_sets, number, dtype=torch.float64, device=labels.device),
            )
            for (experts, number), part in zip(
                num_experts.items(), torch.split(self.all_chosen, sizes), strict=True
            )
        }

    @torch.no_grad()
    def count(self, experts: str, chosen: Tensor, logits: Tensor) -> None:
        """Add what a router chose for all tokens [T, experts per token]."""
        layer, counted = self.layers[experts], self.is_counted
        width = layer.chosen.shape[1]
        rows = self.sets * width
        flat = layer.chosen.view(-1)
        flat.scatter_add_(
            0, (rows[:, None] + chosen).flatten(), counted.repeat_interleave(chosen.shape[1]).long()
        )
        flat.scatter_add_(0, rows + width - 1, counted.long())
        logits = _wide(logits)
        if self.op.loss is not None:
            probabilities = logits.softmax(-1).double() * counted[:, None]
            layer.probabilities.index_add_(0, self.sets, probabilities)
        if self.z_factor is not None:
            self.z_loss += self.z_factor * (logits.logsumexp(-1).double().square() * counted).sum()

    def loads(self) -> dict[str, Tensor]:
        """This rank's tokens of each expert [E], until they are summed over ranks."""
        return {experts: layer.chosen[:, :-1].sum(0) for experts, layer in self.layers.items()}

    def finish(self, mesh: Mesh, over: SumRoutes) -> Tensor:
        """Sum the choices over ranks. Returns this rank's share of both losses, float64."""
        value = torch.zeros((), dtype=torch.float64, device=self.z_loss.device)
        if self.op.loss is None or not self.layers:
            return torch.stack((value, self.z_loss))
        mesh.sum_over(self.all_chosen, over.over)
        counts = [layer.chosen for layer in self.layers.values()]
        if self.op.loss.pooled:
            counts = [torch.stack(counts).sum(0)] * len(counts)
        num_sets = self.op.num_sequences // self.op.loss.num_sequences
        for layer, count in zip(self.layers.values(), counts, strict=True):
            chosen, total = count[:, :-1].double(), count[:, -1:].clamp(min=1).double()
            layer.factors = chosen / total.square() * (self.op.loss.coefficient * chosen.shape[1] / num_sets)
            value += (layer.factors * layer.probabilities).sum()
        return torch.stack((value, self.z_loss))

    def gradient(self, experts: str, logits: Tensor) -> Tensor:
        """The gradient of both losses with respect to a router's logits [T, E]."""
        wide = _wide(logits)
        probabilities = wide.softmax(-1)
        gradient = torch.zeros_like(wide)
        factors = self.layers[experts].factors
        if factors is not None:
            factor = factors.to(wide.dtype)[self.sets]
            gradient += probabilities * (factor - (probabilities * factor).sum(-1, keepdim=True))
        if self.z_factor is not None:
            gradient += (2 * self.z_factor).to(wide.dtype) * wide.logsumexp(-1, keepdim=True) * probabilities
        return (gradient * self.is_counted[:, None]).to(logits.dtype)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


class _Balanced(torch.autograd.Function):
    """The weights of each token's experts, as they are; backward adds to the gradient of the logits."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, logits: Tensor, routes: _Routes | None, experts: str) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.routes, ctx.experts = routes, experts
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        # A forward that is computed again gives its values to the graph of the first one, which has these.
        assert ctx.routes is not None, "the first forward has counted"
        return gradients[0], ctx.routes.gradient(ctx.experts, logits), None, None


class Balance:
    """The routers of this rank, and what was added to the loss of the step under way."""

    def __init__(
        self, op: BalanceExperts, *, device: torch.device, own_tokens: Callable[[Tensor], Tensor]
    ) -> None:
        self.op = op
        self.own_tokens = own_tokens
        """Gives the part of [B, local sequence] that this rank's routers choose for."""
        self.num_experts: dict[int, dict[str, int]] = {}
        """The numbers of experts, by stage of a pipeline and by module of experts."""
        self.losses = torch.zeros(2, dtype=torch.float64, device=device)
        """This rank's shares of the balance loss and of the z-loss, over the step's micro-batches."""
        self.biases: dict[str, Tensor] = {}
        """The biases that are moved, by module of experts."""
        self.loads: dict[str, Tensor] = {}
        """This rank's tokens of each expert whose bias is moved, over the step's micro-batches."""
        self.step = 0
        self.routes: _Routes | None = None
        """The routes of the forward under way; None where none are counted: see `balancing`."""
        self.last: _Routes | None = None
        """The routes of the last forward, until they are summed."""

    def attach(self, name: str, *, router: nn.Module, experts: nn.Module) -> None:
        """Join a router's logits to the graph where its experts, of this name, are called."""
        logits: list[Tensor] = []

        def keep(_: nn.Module, arguments: object, output: Any) -> None:
            logits[:] = [output[0] if isinstance(output, tuple) else output]

        def join(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            own, routes = logits.pop().flatten(0, -2), self.routes
            if not torch.is_grad_enabled():
                return None
            chosen = chosen_experts((*arguments, *keywords.values()))
            if routes is not None:
                routes.count(name, chosen, own)

            def joined(value: Any) -> Any:
                is_weights = isinstance(value, Tensor) and value.is_floating_point()
                if not is_weights or value.shape != chosen.shape:
                    return value
                return _Balanced.apply(value, own, routes, name)  # type: ignore[no-untyped-call]

            return tuple(map(joined, arguments)), {key: joined(value) for key, value in keywords.items()}

        router.register_forward_hook(keep)
        experts.register_forward_pre_hook(join, with_kwargs=True)

    def summed(self, *, num_same: int, has_queue: bool) -> Arrival:
        """Both losses of the step over all ranks, of which `num_same` each have the same tokens."""
        total = self.losses.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(total)
            total /= num_same
        return Arrival(total, has_queue=has_queue)

    def values(self, arrived: Arrival) -> tuple[float | None, float | None]:
        """The balance loss and the z-loss of a step; None for one that the plan has not."""
        balance, z = arrived.values().tolist()
        return balance if self.op.loss else None, z if self.op.z_loss else None


def balance_experts(run: Run, op: BalanceExperts, weights: Weights, pipeline: Pipeline | None) -> Balance:
    """Join the routers that this rank holds to their experts."""
    balance = Balance(op, device=run.device, own_tokens=functools.partial(_own_tokens, run))
    tensors = {**weights.parameters, **dict(weights.model.named_buffers())}
    for router, experts, number, bias in op.layers:
        if not held(pipeline, (experts,)):
            continue
        stage = pipeline.stage_of(experts) if pipeline is not None else 0
        assert stage is not None, "experts are in a layer"
        balance.num_experts.setdefault(stage, {})[experts] = number
        if bias:
            balance.biases[experts] = tensors[bias]
            balance.loads[experts] = torch.zeros(number, dtype=torch.int64, device=run.device)
        model = weights.model
        balance.attach(experts, router=model.get_submodule(router), experts=model.get_submodule(experts))
    return balance


def _own_tokens(run: Run, of_tokens: Tensor) -> Tensor:
    """The part of [B, local sequence] that this rank's routers choose for: a shard of each sequence, if
    ranks of tp send experts their own tokens."""
    if not run.graph.routes_shards:
        return of_tokens
    size = run.graph.size(MeshDim.TP)
    return of_tokens.chunk(size, dim=1)[run.launch.rank // run.graph.stride(MeshDim.TP) % size]


@contextlib.contextmanager
def balancing(balance: Balance, at: Position, batch: LocalBatch, tokens: TokenCount) -> Iterator[None]:
    """The context of a forward, in which routes are counted unless it is an evaluation's."""
    if not torch.is_grad_enabled():
        yield
        return
    if balance.step != at.step:
        balance.step = at.step
        balance.losses.zero_()
        for load in balance.loads.values():
            load.zero_()
    layers = balance.num_experts.get(at.stage, {})
    labels = balance.own_tokens(batch.labels)
    routes = _Routes(balance.op, layers, labels=labels, num_labels=tokens.labels)
    balance.routes = balance.last = routes
    try:
        yield
    finally:
        balance.routes = None


def sum_routes(run: Run, op: SumRoutes, mesh: Mesh, balance: Balance) -> None:
    """Give the micro-batch's routes their gradients."""
    assert balance.last is not None, "a forward came before"
    for experts, load in balance.last.loads().items():
        if experts in balance.loads:
            balance.loads[experts] += load
    balance.losses += balance.last.finish(mesh, op)
    balance.last = None


@torch.no_grad()
def move_biases(
    run: Run, op: MoveBiases, mesh: Mesh, balance: Balance, weights: Weights, verdict: Verdict
) -> Weights:
    """Move the biases of this rank's routers, unless the step is skipped.

    Loads and their sums are whole numbers, and so is their order: all ranks move biases the same way.
    """
    if not balance.loads:
        return weights
    sizes = [len(load) for load in balance.loads.values()]
    total = mesh.sum_over(torch.cat([*balance.loads.values()]), op.over)
    if verdict.is_skipped:
        return weights
    for bias, load in zip(balance.biases.values(), torch.split(total, sizes), strict=True):
        direction = torch.sign(load.sum() - load * len(load)).view(bias.shape)
        for part, whole in local_blocks(bias):
            part += op.update * direction[whole].to(part.dtype)
    return weights
