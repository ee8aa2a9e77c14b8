"""Every group of a mesh gives up after the plan's timeout, not after torch's half an hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from planc.api import check_source
from planc.runtime.observer import Observer
from planc.runtime.torch.parallel.mesh import fsdp_mesh, init_mesh
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, make_workspace, plan_text
from tests.parity.ranks import Task, open_run
from tests.patience import WAIT_SECONDS, is_within, unhurried, wait_until

TIMEOUT_SECONDS = unhurried(2)


WAITING = {0: (MeshDim.TP,), 7: (MeshDim.DP_SHARD, MeshDim.CP)}
"""The ranks that wait for others of a group that do not come. No group has both."""


def seconds_until_given_up(rank: int, world_size: int, task: Task) -> float:
    """How long a rank of `WAITING` waits; 0 on all others."""
    own = open_run(task, Observer())
    mesh = init_mesh(own, task.graph.init_mesh)
    # All ranks make every group, in one order.
    groups = {
        waiter: fsdp_mesh(own, mesh, shard_over=mesh_dims, replicate_over=()).get_group()
        for waiter, mesh_dims in WAITING.items()
    }
    dist.barrier()
    began, seconds = time.monotonic(), 0.0
    if rank in WAITING:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.zeros(1), group=groups[rank])
        seconds = time.monotonic() - began
        (task.run_folder / f"given-up-{rank}").touch()
    # The others stay until all have given up: a closed connection would end a wait at once.
    wait_until(lambda: len([*task.run_folder.glob("given-up-*")]) == len(WAITING), "every wait ends")
    return seconds


@pytest.mark.slow
def test_a_group_of_a_mesh_of_two_dims_gives_up_in_time(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    case = Case("DP2·CP2·TP2", "", {"dp_shard": 2, "cp": 2, "tp": 2})
    text = plan_text(case).replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1)
    graph = check_source(SourceFile("x.plan", text), base=workspace).graph
    assert graph is not None
    task = Task(graph, workspace, tmp_path)
    seconds = run_ranks(
        seconds_until_given_up, case.world_size, task, init=False, timeout_seconds=WAIT_SECONDS
    )
    for rank, waited in enumerate(seconds):
        if rank in WAITING:
            assert waited > TIMEOUT_SECONDS - 0.5
            assert is_within(waited, 3.5 * TIMEOUT_SECONDS)
        else:
            assert waited == 0.0
