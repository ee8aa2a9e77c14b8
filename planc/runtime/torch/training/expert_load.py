"""The tokens that each expert gets in a logged step, over all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planc.graph.ops import CountExperts, Log
from planc.runtime.interpreter import Position
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.parallel.experts import Capacity, capacity_of
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.tables import plural

_LEAST_SHARE = 20
"""Tokens of an equal share: with fewer, an expert of a balanced layer may get none by chance."""
_MAX_NAMED = 8


class ExpertLoad:
    """Counts of this rank since they were last summed; open only in the forwards of a step that is logged.

    Backward that recomputes a forward is outside of it, and evaluations are without gradients.
    """

    def __init__(self, op: CountExperts, *, device: torch.device, capped: Collection[str] = ()) -> None:
        """`capped` are the modules of experts with a capacity."""
        self.layers = op.layers
        self.is_open = False
        self._starving: frozenset[tuple[str, int]] = frozenset()
        self._capped = [fqn for fqn, _ in op.layers if fqn in capped]
        # Then one number for each layer with a capacity: the choices that no expert took.
        self._parts = [*(num_experts for _, num_experts in op.layers), len(self._capped)]
        self._counts = torch.zeros(sum(self._parts), dtype=torch.int64, device=device)
        *of_layer, self._dropped = torch.split(self._counts, self._parts)
        self._of_layer = dict(zip((fqn for fqn, _ in op.layers), of_layer, strict=True))

    def attach(self, fqn: str, experts: nn.Module, capacity: Capacity | None = None) -> None:
        counts = self._of_layer[fqn]

        def count(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if self.is_open and torch.is_grad_enabled():
                chosen = chosen_experts((*arguments, *keywords.values()))
                counts.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
                if capacity is not None:
                    self._dropped[self._capped.index(fqn)].add_(capacity.num_dropped(chosen, len(counts)))

        experts.register_forward_pre_hook(count, with_kwargs=True)

    def summed(self, *, num_same: int, has_queue: bool) -> Arrival:
        """The counts over all ranks, of which `num_same` each have the same tokens."""
        total = self._counts.clone()
        self._counts.zero_()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(total)
            total //= num_same
        return Arrival(total, has_queue=has_queue)

    def by_layer(self, arrived: Arrival) -> dict[str, tuple[int, ...]]:
        *parts, _ = torch.split(arrived.values(), self._parts)
        return {fqn: tuple(part.tolist()) for (fqn, _), part in zip(self.layers, parts, strict=True)}

    def dropped(self, arrived: Arrival) -> dict[str, int]:
        """The choices that no expert took, by module of experts with a capacity."""
        *_, numbers = torch.split(arrived.values(), self._parts)
        return dict(zip(self._capped, numbers.tolist(), strict=True))

    def newly_starving(self, load: Mapping[str, Sequence[int]]) -> Iterator[str]:
        """A text for each layer with experts that got no token of this step, but of the last one."""
        starving = {
            (fqn, expert)
            for fqn, counts in load.items()
            for expert, count in enumerate(counts)
            if not count and sum(counts) >= _LEAST_SHARE * len(counts)
        }
        before, self._starving = self._starving, frozenset(starving)
        for fqn, counts in load.items():
            if new := sorted(expert for layer, expert in starving - before if layer == fqn):
                share = sum(counts) // len(counts)
                yield (
                    f"{plural(len(new), 'expert')} of {fqn} got no token, equal shares would be {share}: "
                    f"{', '.join(map(str, new[:_MAX_NAMED]))}{' ...' if len(new) > _MAX_NAMED else ''}"
                )


def count_experts(run: Run, op: CountExperts, weights: Weights, pipeline: Pipeline | None) -> ExpertLoad:
    """Count where experts are called, on the ranks that hold them."""
    capped = run.graph.capacity.modules if run.graph.capacity else ()
    load = ExpertLoad(op, device=run.device, capped=capped)
    for fqn in held(pipeline, (fqn for fqn, _ in op.layers)):
        load.attach(fqn, weights.model.get_submodule(fqn), capacity_of(run, fqn))
    return load


@contextlib.contextmanager
def counting(load: ExpertLoad, run: Run, at: Position) -> Iterator[None]:
    """The context of a forward: it counts if the step is logged."""
    log = next(op for op in run.graph.step if isinstance(op, Log))
    load.is_open = log.is_due(step=at.step, num_steps=run.graph.num_steps)
    try:
        yield
    finally:
        load.is_open = False


def chosen_experts(values: tuple[Any, ...]) -> Tensor:
    """The numbers of each token's experts: [tokens, experts per token], as the inventory has seen them."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim == 2]
    return next(one for one in tensors if one.dtype == torch.int64)
