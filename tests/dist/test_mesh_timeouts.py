"""Every group of a mesh gives up after the plan's timeout, not after torch's half an hour."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from planc.api import check_source
from planc.runtime.observer import Silent
from planc.runtime.torch.parallel.mesh import fsdp_mesh, init_mesh
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, make_workspace, plan_text
from tests.parity.ranks import Task, open_run
from tests.patience import WAIT_SECONDS, is_within, unhurried

TIMEOUT_SECONDS = unhurried(2)


def seconds_until_given_up(rank: int, world_size: int, task: Task, mesh_dims: tuple[MeshDim, ...]) -> float:
    """How long rank 0 waits for a rank that does not come; 0 on all others."""
    own = open_run(task, Silent())
    mesh = init_mesh(own, task.graph.init_mesh)
    group = fsdp_mesh(own, mesh, shard_over=mesh_dims, replicate_over=()).get_group()
    dist.barrier()
    began = time.monotonic()
    if rank == 0:
        try:
            dist.all_reduce(torch.zeros(1), group=group)
        except RuntimeError:
            return time.monotonic() - began
    # The others stay, or a closed connection would tell at once.
    time.sleep(4 * TIMEOUT_SECONDS)
    return 0.0


def test_a_group_of_a_mesh_of_two_dims_gives_up_in_time(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    case = Case("DP2·CP2·TP2", "", {"dp_shard": 2, "cp": 2, "tp": 2})
    text = plan_text(case).replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1)
    graph = check_source(SourceFile("x.plan", text), base=workspace).graph
    assert graph is not None
    for mesh_dims in ((MeshDim.TP,), (MeshDim.DP_SHARD, MeshDim.CP)):
        task = Task(graph, workspace, tmp_path)
        first, *others = run_ranks(
            seconds_until_given_up, case.world_size, task, mesh_dims, init=False, timeout_seconds=WAIT_SECONDS
        )
        assert first > TIMEOUT_SECONDS - 0.5
        assert is_within(first, 3.5 * TIMEOUT_SECONDS)
        assert set(others) == {0.0}
