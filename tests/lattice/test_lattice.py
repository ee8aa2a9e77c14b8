"""The lattice: a sample of each part, a planted bug that it must find, and what its cells are."""

from __future__ import annotations

import os
import signal
from itertools import combinations, product
from pathlib import Path

import pytest

from planc.graph.op import Op
from planc.graph.ops import Backward
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.run import Run
from planc.vocab import MeshDim
from tests.lattice.cells import (
    CONTEXTS,
    RECOMPUTATIONS,
    SCHEDULES,
    UNITS,
    WORLD_SIZES,
    Cell,
    Mesh,
    cells,
    full_product,
    make_workspace,
    meshes,
    narrow_cells,
    unit_cells,
)
from tests.lattice.measure import measure, measure_all
from tests.lattice.table import chosen_names, main, parts
from tests.parity.faults import FAULTS

CP_TP = Mesh(1, 1, 2, 2)
PP2_DP2, PP2_CP2 = Mesh(1, 2, 1, 1, pp=2), Mesh(1, 1, 2, 1, pp=2)
QUICK = (
    Cell(
        Mesh(1, 2, 1, 2),
        sequence_parallel=True,
        num_micro_steps=4,
        recomputation="full",
        sharding="zero 2",
        ep=4,
        experts_on="dp_shard, tp",
    ),
    Cell(Mesh(1, 1, 1, 1), num_micro_steps=4, recomputation="selective"),
    Cell(Mesh(2, 1, 1, 1), num_micro_steps=4),
    Cell(Mesh(1, 2, 1, 2), num_micro_steps=4, sharding="zero 1"),
    Cell(Mesh(2, 2, 1, 1), num_micro_steps=4, recomputation="full", sharding="zero 2"),
    Cell(Mesh(1, 2, 2, 1), context="ring headtail", num_micro_steps=4, sharding="reduced each micro-batch"),
    Cell(Mesh(2, 1, 1, 2), whole_replicas=True, sequence_parallel=True, num_micro_steps=4),
    Cell(Mesh(1, 1, 1, 4), sequence_parallel=True, recomputation="full"),
    Cell(Mesh(1, 2, 1, 2), loss_parallel=True, num_micro_steps=4),
    Cell(Mesh(2, 1, 2, 1), context="ulysses none"),
    Cell(CP_TP, sequence_parallel=True, context="allgather none", recomputation="selective"),
    Cell(Mesh(1, 2, 2, 2), sequence_parallel=True, loss_parallel=True, context="ring headtail"),
    Cell(CP_TP, sequence_parallel=True, context="ring none", recomputation="selective", dtype="float32"),
    Cell(Mesh(2, 1, 1, 1, pp=2), whole_replicas=True, num_micro_steps=1, schedule="gpipe"),
    Cell(Mesh(1, 1, 1, 1, pp=4), num_micro_steps=6, schedule="one_f_one_b", recomputation="full"),
    Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, schedule=SCHEDULES[2], recomputation="selective"),
    Cell(
        Mesh(1, 1, 1, 2, pp=2),
        sequence_parallel=True,
        loss_parallel=True,
        num_micro_steps=3,
        schedule=SCHEDULES[2],
    ),
    Cell(Mesh(1, 1, 2, 1, pp=2), context="ring headtail", num_micro_steps=3, schedule="gpipe", is_tied=True),
    Cell(Mesh(1, 1, 1, 1, pp=4), num_micro_steps=6, schedule="zero_bubble", recomputation="full"),
    Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, schedule="zero_bubble", recomputation="selective"),
    Cell(
        Mesh(1, 1, 1, 2, pp=2),
        sequence_parallel=True,
        loss_parallel=True,
        num_micro_steps=3,
        schedule="zero_bubble",
    ),
    Cell(Mesh(1, 1, 2, 1, pp=2), context="ring headtail", num_micro_steps=3, schedule="zero_bubble"),
    Cell(Mesh(2, 1, 1, 1, pp=2), whole_replicas=True, num_micro_steps=3, schedule="zero_bubble"),
    Cell(PP2_DP2, num_micro_steps=1, schedule="gpipe", units="none"),
    Cell(PP2_DP2, num_micro_steps=3, schedule="one_f_one_b", units="mlp", recomputation="full"),
    Cell(PP2_DP2, num_micro_steps=3, schedule=SCHEDULES[2], units="all layers but one"),
    Cell(PP2_DP2, num_micro_steps=2, schedule="one_f_one_b", units="one layer", is_tied=True),
    Cell(PP2_CP2, context="ring headtail", num_micro_steps=3, schedule="zero_bubble", units="attention"),
    Cell(
        PP2_CP2,
        context="allgather none",
        num_micro_steps=3,
        schedule="one_f_one_b",
        recomputation="selective",
        units="norms, attention and mlp",
    ),
    Cell(Mesh(2, 2, 1, 1), ep=2, loss="DPO"),
    Cell(Mesh(1, 1, 1, 2), sequence_parallel=True, ep=2, experts_on="tp", trained="LoRA"),
    Cell(PP2_DP2, num_micro_steps=2, schedule="gpipe", recomputation="full", ep=2, trained="LoRA"),
    # Frozen experts are passed by backward; their layers' units end after theirs.
    Cell(Mesh(1, 2, 1, 1), units="ends and layers", ep=2, trained="LoRA"),
    Cell(Mesh(1, 2, 1, 2), sequence_parallel=True, num_micro_steps=4, trained="QLoRA"),
    Cell(Mesh(1, 2, 1, 2), loss_parallel=True, num_micro_steps=4, trained="LoRA", loss="DPO"),
    Cell(Mesh(1, 2, 1, 2), loss_parallel=True, num_micro_steps=4, loss="teacher in chunks"),
    Cell(PP2_CP2, context="ring headtail", num_micro_steps=3, schedule="one_f_one_b", loss="teacher"),
    Cell(PP2_CP2, context="ring none", num_micro_steps=2, schedule="gpipe", loss="DPO in chunks"),
    Cell(PP2_CP2, context="ulysses none", num_micro_steps=2, schedule="gpipe", units="ends"),
    # Experts are all that FSDP shards.
    Cell(
        Mesh(1, 1, 1, 2, pp=2),
        sequence_parallel=True,
        loss_parallel=True,
        num_micro_steps=2,
        schedule="zero_bubble",
        ep=2,
        experts_on="tp",
    ),
    Cell(
        Mesh(2, 1, 1, 1, pp=2),
        num_micro_steps=3,
        schedule="one_f_one_b",
        recomputation="selective",
        units="norms, attention and mlp",
    ),
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("lattice") / "workspace")


@pytest.mark.sampled(every=50)
@pytest.mark.parametrize("cell", QUICK, ids=lambda cell: cell.name)
def test_a_cell_trains_as_one_process(cell: Cell, workspace: Path) -> None:
    (row,) = measure((cell,), workspace=workspace)
    assert row.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("part", parts())
def test_every_cell_trains_as_one_process(part: str, workspace: Path) -> None:
    rows = measure_all(parts()[part](), workspace=workspace)
    assert [(row.cell.name, row.problems) for row in rows if row.problems] == []


def test_a_gradient_that_is_not_summed_over_tp_fails(workspace: Path) -> None:
    fault = FAULTS["norm_gradients_not_reduced"]
    cell = Cell(Mesh(1, 1, 1, 2), sequence_parallel=True, recomputation="selective")
    (row,) = measure((cell,), workspace=workspace, before_op=fault)
    assert any(problem.startswith("gradient of model") for problem in row.problems)
    assert any("has a different gradient" in problem for problem in row.problems)


def _die_in_backward(state: State, op: Op, position: Position) -> None:
    if isinstance(op, Backward) and state[Run].coordinate(MeshDim.TP) == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.slow
def test_a_process_that_dies_fails_its_cell_and_no_other(workspace: Path) -> None:
    """As one does that reads memory which FSDP has freed."""
    cell = Cell(Mesh(1, 1, 1, 2))
    (row,) = measure((cell,), workspace=workspace, before_op=_die_in_backward)
    assert row.problems != ()
    (row,) = measure((cell,), workspace=workspace)
    assert row.problems == ()


def test_units_of_every_shape_meet_every_way_to_run_a_pipeline() -> None:
    found = {
        (cell.units, cell.schedule, cell.recomputation, cell.mesh.cp > 1)
        for cell in unit_cells()
        if cell.mesh.pp == 2 and cell.mesh.has_shards
    }
    others = [shape for shape in UNITS if shape != "layers"]
    assert found == {*product(others, SCHEDULES, RECOMPUTATIONS, (True, False))}
    assert {cell.context for cell in unit_cells()} == {"", *CONTEXTS}


def test_meshes_are_all_factorisations() -> None:
    assert [len(tuple(meshes(world_size))) for world_size in WORLD_SIZES] == [1, 4, 10, 20]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_two_values_that_may_meet_do(world_size: int) -> None:
    """On 8 ranks on some mesh, elsewhere on each."""

    def pairs(found: tuple[Cell, ...], mesh: Mesh | None) -> set[object]:
        chosen = [cell for cell in found if mesh in (None, cell.mesh)]
        return {pair for cell in chosen for pair in combinations(_values(cell), 2)}

    every = tuple(cell for mesh in meshes(world_size) for cell in full_product(mesh))
    for mesh in (None,) if world_size == 8 else tuple(meshes(world_size)):
        assert pairs(cells(world_size), mesh) == pairs(every, mesh)


def _values(cell: Cell) -> tuple[tuple[str, object], ...]:
    return tuple((name, getattr(cell, name)) for name in Cell.__dataclass_fields__)


def test_the_narrow_sample_has_every_mesh_of_several_ranks_and_every_value() -> None:
    found = narrow_cells("float32")
    assert {cell.mesh for cell in found} == {*meshes(4), *meshes(8)}
    axes = (
        "whole_replicas",
        "sequence_parallel",
        "loss_parallel",
        "context",
        "num_micro_steps",
        "recomputation",
    )
    numbers = [len({getattr(cell, axis) for cell in found}) for axis in axes]
    assert numbers == [2, 2, 2, 6, 2, 3]


def test_every_name_given_keeps_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """The second of two was ignored, and its cells were thought to have passed."""
    assert chosen_names(tuple(parts()), ("1 rank", "pipelines of 4")) == [
        "float64, 1 rank",
        "float64, pipelines of 4 ranks",
    ]
    assert main(("1 rank", "16 ranks")) == 2
    assert "no part is called '16 ranks'" in capsys.readouterr().err
