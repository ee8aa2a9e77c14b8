"""Experts of a rehearsal, whose routers choose nothing: every rank gets as many rows as it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from planc.graph.ops import ShardExperts
from planc.runtime.torch.parallel import experts
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.vocab import local_length


@dataclass(frozen=True, slots=True)
class BalancedDispatch(experts.Dispatch):
    """A dispatch to experts of equal load."""

    def num_rows(self, sent: Tensor, received: Tensor, *, of_all: int) -> tuple[Sequence[int], Sequence[int]]:
        """Equal numbers of rows for each rank, and from it."""
        equal = [local_length(of_all, parts=self.num_ranks, index=index) for index in range(self.num_ranks)]
        return equal, equal


def shard_experts(
    run: Run, op: ShardExperts, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Give this rank its experts, as a run does, and let forwards send equal numbers of tokens."""
    experts.dispatch_with(BalancedDispatch, run, op, mesh, model, pipeline)
