"""Experts on different ranks: a rank that dies between its exchanges, and an expert with a bad weight."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from safetensors.torch import load_file, save_file

from planc.cli.commands import run as command
from planc.runtime.errors import ExitCode
from planc.runtime.torch.parallel.experts import Dispatch
from tests.dist.test_expert_parallel import folder_of, graph_of
from tests.faults.ranks import Ending, endings
from tests.faults.runs import TIMEOUT_SECONDS, said
from tests.launch.processes import free_port
from tests.patience import is_within

WORLD_SIZE = 2
FATAL_EXCHANGE = 19
EXPERT = "model.layers.1.mlp.experts.down_proj"
Pass = Literal["forward", "backward"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_others_end_when_a_rank_dies_between_exchanges(where: Pass, tmp_path: Path) -> None:
    """Rank 0 waits for rows that rank 1 has not sent."""
    began = time.monotonic()
    survivor, dead = _run(tmp_path, where)
    assert dead.was_killed and not survivor.has_hung
    assert survivor.code == ExitCode.COMMUNICATION, said(tmp_path / "run")
    assert "rank 1" in said(tmp_path / "run")
    assert is_within(time.monotonic() - began, TIMEOUT_SECONDS + 30)


@pytest.mark.parametrize("expert", [0, 7])
def test_the_rank_with_a_bad_expert_is_named(expert: int, tmp_path: Path) -> None:
    """Every rank's loss is NaN: all send the expert some tokens."""
    ranks = _run(tmp_path, None, bad_expert=expert)
    assert [one.code for one in ranks] == [ExitCode.NUMERICS] * WORLD_SIZE, said(tmp_path / "run")
    holder = expert // 4
    assert f"{EXPERT} itself is NaN or inf on rank {holder}" in said(tmp_path / "run")


def _run(folder: Path, dies: Pass | None, *, bad_expert: int | None = None) -> tuple[Ending, ...]:
    """The endings of two ranks with four experts each."""
    base = folder_of(folder, "qwen3_moe")
    if bad_expert is not None:
        path = base / "model" / "model.safetensors"
        tensors = load_file(path)
        tensors[f"{EXPERT.removesuffix('.down_proj')}.{bad_expert}.down_proj.weight"][0, 0] = float("nan")
        save_file(tensors, path, metadata={"format": "pt"})
    graph_of(base, "ep 2")
    world = {"WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return endings(_rank, WORLD_SIZE, base / "x.plan", folder / "run", dies, group=False, environment=world)


def _rank(rank: int, world_size: int, plan: Path, run_folder: Path, dies: Pass | None) -> None:
    log = os.open(run_folder.with_name(f"{run_folder.name}.rank-{rank}.log"), os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    if rank == 1 and dies is not None:
        _die_between_exchanges(dies)
    settings = ("mesh.dp_shard=2", "expert_parallel.size=2", f"mesh.timeout={TIMEOUT_SECONDS} s")
    command.main([str(plan), "--run-dir", str(run_folder), *(f"--set={one}" for one in settings)])


def _die_between_exchanges(dies: Pass) -> None:
    """In the second step: a step has 16 exchanges in forward, two for each layer and micro-batch."""
    exchange, calls = Dispatch._exchange, count(1)

    def met(*arguments: Any) -> Any:
        is_fatal = next(calls) == FATAL_EXCHANGE
        if is_fatal and dies == "forward":
            os.kill(os.getpid(), signal.SIGKILL)
        rows = exchange(*arguments)
        if is_fatal:
            rows.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        return rows

    Dispatch._exchange = met  # type: ignore[method-assign]
