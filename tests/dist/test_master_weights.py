"""Master weights: parameters stored in float32 keep the updates that bfloat16 would round away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Task, train_rank

SMALL = ("optimizer.kind=adamw(lr = 1e-5)", "optimizer.schedule=constant")


def trained_norm(workspace: Path, folder: Path, *settings: str) -> Tensor:
    """The last norm's weight, which starts at 1, after a few small steps on two ranks of FSDP."""
    case = Case("DP2", "", {"dp_shard": 2}, settings=(*SMALL, "fsdp.param_dtype=bfloat16", *settings))
    graph = compile_case(case, workspace=workspace)
    records = run_ranks(train_rank, 2, Task(graph, workspace, folder, stop_after=3), init=False)
    return records[0].final["model.norm.weight"]


@pytest.mark.slow
def test_float32_parameters_take_updates_that_compute_in_bfloat16_does_not_see(
    workspace: Path, tmp_path: Path
) -> None:
    weight = trained_norm(workspace, tmp_path / "run")
    assert weight.dtype is torch.float32
    assert 0 < float((weight - 1).abs().max()) < 1e-3


@pytest.mark.slow
def test_bfloat16_parameters_lose_them(workspace: Path, tmp_path: Path) -> None:
    weight = trained_norm(workspace, tmp_path / "run", "model.dtype=bfloat16")
    assert weight.dtype is torch.bfloat16
    assert torch.equal(weight, torch.ones_like(weight))
