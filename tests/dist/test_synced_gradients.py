"""Gradients that are partial sums over tp, made whole together."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from planc.graph.ops import SyncGradients
from planc.runtime.torch.parallel.gradients import squared_norm, sync_gradients
from planc.runtime.torch.state import Gradients, Weights
from planc.source import Span
from planc.verify.pool import run_ranks
from planc.vocab import MeshDim

SHAPES = ((6,), (4, 6), (10,))


class Parameters(nn.Module):
    """Whole parameters on tp, each with its gradient, and a sharded one."""

    def __init__(self, dtypes: tuple[torch.dtype, ...], *, rank: int) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        for index, (shape, dtype) in enumerate(zip(SHAPES, dtypes, strict=True)):
            summand = torch.full(shape, float(rank + index), dtype=dtype)
            self.add(f"whole_{index}", torch.zeros(shape, dtype=dtype), summand, mesh, Replicate(), Partial())
        self.add("divided", torch.zeros(8), torch.ones(2), mesh, Shard(0), Shard(0))

    def add(
        self, name: str, value: Tensor, gradient: Tensor, mesh: Any, lies: Placement, arrives: Placement
    ) -> None:
        self.register_parameter(name, nn.Parameter(distribute_tensor(value, mesh, [lies])))
        self.get_parameter(name).grad = DTensor.from_local(gradient, mesh, [arrives], run_check=False)


def synced(rank: int, world_size: int, dtypes: tuple[torch.dtype, ...]) -> tuple[dict[str, Any], int, float]:
    """(values of each gradient's part on this rank, messages, the square of the norm)."""
    model = Parameters(dtypes, rank=rank)
    op = SyncGradients(over=(MeshDim.TP,), span=Span("p.plan", 1, 1, 1, 1))
    with CommDebugMode() as messages:
        sync_gradients(cast(Any, None), op, Gradients(Weights.of(model)))
    gradients = {name: cast(DTensor, parameter.grad) for name, parameter in model.named_parameters()}
    assert all(gradients[name].placements == model.get_parameter(name).placements for name in gradients)
    norm = squared_norm(gradients.values(), device=torch.device("cpu")).item()
    values = {name: gradient.to_local().unique().tolist() for name, gradient in gradients.items()}
    return values, messages.get_total_counts(), norm


def test_partial_gradients_of_one_dtype_are_summed_in_one_message() -> None:
    for values, num_messages, norm in run_ranks(synced, 4, (torch.float32,) * 3):
        # Summands are the rank's number, and the parameter's on top: 0 + 1 + 2 + 3 is 6.
        assert values == {"whole_0": [6.0], "whole_1": [10.0], "whole_2": [14.0], "divided": [1.0]}
        assert num_messages == 1
        assert norm == pytest.approx(6 * 36 + 24 * 100 + 10 * 196 + 8)


def test_partial_gradients_of_two_dtypes_are_summed_in_two_messages() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float32)
    for values, num_messages, _ in run_ranks(synced, 4, dtypes):
        assert values == {"whole_0": [6.0], "whole_1": [10.0], "whole_2": [14.0], "divided": [1.0]}
        assert num_messages == 2
