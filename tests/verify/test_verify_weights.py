"""No reference begins with a constant, so a bias that is zero or a gate that is shut can hide no factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from planc.api import check_plan
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.verify.perturb import constants
from planc.verify.recipe import CORPUS
from planc.verify.reference import Training
from planc.verify.verify import LIMITS, prepare, run_plan
from planc.vocab import DType
from tests.lattice import cells
from tests.lattice.measure import reference_of as lattice_reference
from tests.models import independent
from tests.mutants.campaign import Workshop, shrunk_bases
from tests.mutants.mutant import Edited
from tests.mutants.reference import recipe_of
from tests.mutants.truth import reference_of as mutants_reference
from tests.parity.cases import Case, make_workspace
from tests.parity.reference import train_reference
from tests.verify.conftest import Prepared, checked

Prepare = Callable[[Case], Prepared]
TP2 = Case("TP2", "", {"tp": 2}, model="starcoder", tensor_parallel="auto")
EXPERTS = Case("1", model="qwen3-moe", tensor_parallel="auto")


def of_verify(folder: Path) -> Iterator[Training]:
    workspace = make_workspace(folder / "workspace")
    for number, case in enumerate((TP2, EXPERTS)):
        plan = checked(case, workspace=workspace)
        assert plan.bound is not None and plan.graph is not None
        yield prepare(plan.bound, plan.graph, base=workspace, folder=folder / str(number))[1]


def of_lattice(folder: Path) -> Iterator[Training]:
    cells.make_workspace(folder)
    for cell in (cells.Cell(cells.Mesh(1, 1, 1, 1), dtype=dtype) for dtype in ("float64", "bfloat16")):
        yield lattice_reference(cell, workspace=folder)


def of_mutants(folder: Path) -> Iterator[Training]:
    workshop = Workshop(folder)
    for base in shrunk_bases()[::40]:
        right = check_plan(workshop.write("right", Edited(base.draft, base.config, base.name)))
        assert right.bound is not None and right.graph is not None
        yield mutants_reference(recipe_of(right.bound, right.graph, base=folder))


def of_parity(folder: Path) -> Iterator[Training]:
    workspace = make_workspace(folder / "workspace")
    for model in ("qwen3-moe", "starcoder"):
        yield train_reference(model, workspace=workspace)


REFERENCES = {"verify": of_verify, "lattice": of_lattice, "mutants": of_mutants, "parity": of_parity}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("suite", REFERENCES)
def test_a_reference_begins_with_no_constant(suite: str, tmp_path: Path) -> None:
    trainings = list(REFERENCES[suite](tmp_path))
    assert len(trainings) > 1
    assert [name for one in trainings for name in constants(one.initial)] == []


KINDS: Mapping[str, Tensor] = {
    "zeros": torch.zeros(4),
    "equal rows": torch.arange(3.0).expand(2, 3),
    "equal columns": torch.arange(3.0).expand(2, 3).T,
    "a gate that is shut": torch.zeros(1),
    "a scale of one": torch.tensor(1.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_constant_is_named(kind: str) -> None:
    """By the measure of planc's references, and by that of the table of models, which imports nothing."""
    assert [*constants({"w": KINDS[kind]})] == [*independent.constants({"w": KINDS[kind]})] == ["w"]


def test_what_varies_is_not_named() -> None:
    varied = {"matrix": torch.arange(6.0).view(2, 3), "column": torch.arange(3.0).view(3, 1)}
    varied |= {"scalar": torch.tensor(0.5), "empty": torch.zeros(0)}
    assert [*constants(varied)] == [*independent.constants(varied)] == []


def bias_added_on_every_rank(state: State, op: Op, position: Position) -> None:
    """As of a bias that is not distributed."""
    if isinstance(op, ops.Forward):
        for module in state[nn.Module].modules():
            share = vars(module).get("_planc_share")
            if share is not None and share.adds_bias_on is not None:
                vars(module)["_planc_share"] = replace(share, adds_bias_on=0)


def test_a_bias_on_every_rank_shows_before_the_first_update(prepared: Prepare, tmp_path: Path) -> None:
    one = prepared(TP2)
    (tmp_path / "model").symlink_to(one.folder / "model")
    (tmp_path / CORPUS).symlink_to(one.folder / CORPUS)
    records = run_plan(one.shrunk.graph, folder=tmp_path, before_op=bias_added_on_every_rank)
    first, expected = records[0].metrics[0].loss, one.training.losses[0]
    assert abs(first - expected) > LIMITS[DType.FLOAT32] * expected
