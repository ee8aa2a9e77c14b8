"""The tokens that experts take of each sequence: the first that choose them, up to their capacity.

A sequence is always on one rank whole, so its tokens are the same on every mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from planc.graph.ops import CapExperts, OpenData
from planc.runtime.torch.run import Run


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a module's experts. `chosen` are [tokens, experts per token], of whole sequences."""

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
