"""In a pipeline, FSDP's units are gathered on real ranks from the action to the action that the graph has."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from planc.graph.ops import Backward, Forward
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.pipelining.orders import Action, Direction
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch import private
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel import pipeline as pipelines
from tests.dist.pool import run_ranks
from tests.lattice.cells import SCHEDULES, UNITS, Cell, Mesh, compile_cell, make_workspace
from tests.parity.ranks import Task, open_run

Gathered = dict[tuple[Action, tuple[str, ...]], bool]
"""Whether a unit of this rank is gathered right after an action."""
DIRECTIONS = {Forward: Direction.FORWARD, Backward: Direction.BACKWARD}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("stays") / "workspace")


def gathered_after_actions(rank: int, world_size: int, task: Task) -> Gathered:
    """What this rank's first step gathers."""
    pipeline = pipeline_of(task.graph)
    assert pipeline is not None
    backend = TorchBackend(open_run(task, Observer()))
    found: Gathered = {}
    plain = backend.execute

    def execute(op: object, position: Position) -> None:
        plain(op, position)  # type: ignore[arg-type]
        if isinstance(op, Forward | Backward):
            action = Action(position.stage, DIRECTIONS[type(op)], position.micro_step)
            for unit in pipeline.units:
                if pipelines.held(backend.state.get(pipelines.Pipeline), unit.modules):
                    module = backend.state[nn.Module].get_submodule(unit.modules[0])
                    assert isinstance(module, FSDPModule)
                    found[action, unit.modules] = _is_gathered(module)

    backend.execute = execute  # type: ignore[method-assign, assignment]
    run(task.graph, backend, stop_after=1)
    return found


def _is_gathered(unit: FSDPModule) -> bool:
    (group,) = private.parameter_groups(unit)
    return bool(group.is_unsharded or group._all_gather_result is not None)


def gathered_in_graph(pipeline: Pipeline, rank: int) -> Gathered:
    """The same of a pp rank, as the graph has it."""
    order = [one for one in pipeline.orders[rank] if one.direction is not Direction.WEIGHTS]
    found = {}
    for unit in pipeline.units:
        if unit.stage % pipeline.num_ranks == rank:
            inside = [(order.index(stay.first), order.index(stay.last)) for stay in pipeline.stays(unit)]
            for place, action in enumerate(order):
                found[action, unit.modules] = any(first <= place < last for first, last in inside)
    return found


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("units", ["one layer", "mlp", "norms, attention and mlp"])
def test_units_are_gathered_when_the_graph_says(
    units: str, schedule: str, workspace: Path, tmp_path: Path
) -> None:
    assert units in UNITS
    cell = Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, schedule=schedule, units=units)
    _, graph = compile_cell(cell, workspace=workspace)
    pipeline = pipeline_of(graph)
    assert pipeline is not None
    found = run_ranks(gathered_after_actions, 4, Task(graph, workspace, tmp_path), init=False)
    for rank, gathered in enumerate(found):
        assert gathered == gathered_in_graph(pipeline, rank // 2)
    # Units that stay gathered from a forward to another action are among them.
    assert any(found[0].values()) == (units != "norms, attention and mlp")
