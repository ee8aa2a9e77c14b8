"""FSDP units are gathered ahead of their use, in both directions, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from planc.runtime.interpreter import run
from planc.runtime.observer import Observer
from planc.runtime.torch import private
from planc.runtime.torch.backend import TorchBackend
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Task, open_run

NUM_LAYERS = 4


def is_gathered(layer: nn.Module) -> bool:
    """Whether FSDP has asked for a unit's parameters."""
    assert isinstance(layer, FSDPModule)
    (group,) = private.parameter_groups(layer)
    return group.is_unsharded or group._all_gather_result is not None


def gathered_by_layer(rank: int, world_size: int, task: Task) -> tuple[list[int], list[int]]:
    """How many layers are gathered while each layer computes, in forward and in backward."""
    backend = TorchBackend(open_run(task, Observer()))
    found: tuple[list[int], list[int]] = ([], [])
    layers: list[nn.Module] = []
    plain = backend.execute

    def execute(op: object, position: object) -> None:
        plain(op, position)  # type: ignore[arg-type]
        if getattr(op, "op", "") == "optimizer.build":
            for index in range(NUM_LAYERS):
                layer = backend.state[nn.Module].get_submodule(f"model.layers.{index}")
                attention = layer.get_submodule("self_attn")
                attention.register_forward_hook(lambda *_: note(0))
                attention.register_full_backward_hook(lambda *_: note(1))
                layers.append(layer)

    def note(direction: int) -> None:
        found[direction].append(sum(map(is_gathered, layers)))

    backend.execute = execute  # type: ignore[method-assign]
    run(task.graph, backend, stop_after=1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [2, 3])
def test_units_are_gathered_ahead(ahead: int, workspace: Path, tmp_path: Path) -> None:
    case = Case("DP2", "", {"dp_shard": 2}, model="llama-deep", settings=(f"fsdp.prefetch={ahead}",))
    task = Task(compile_case(case, workspace=workspace), workspace, tmp_path)
    for forward, backward in run_ranks(gathered_by_layer, 2, task, init=False):
        expected = [min(ahead + 1, NUM_LAYERS - index) for index in range(NUM_LAYERS)]
        assert (forward, backward) == (expected, expected)
