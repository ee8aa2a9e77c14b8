"""Every fault of the catalogue is caught, and so are the plans in `wild`, which no catalogue has foreseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_source
from planc.inventory.codec import dumps
from planc.inventory.probe.probe import probe
from planc.source import SourceFile
from tests.catalogue.declared import HERE, PROOFS, BrokenPlan, Fault, exists, faults, plans, proof_of
from tests.plans import PLANS

FAULTS = faults()


def codes(plan: BrokenPlan, *, base: Path) -> tuple[str, ...]:
    source = SourceFile(plan.path.name, plan.text)
    settings = [SourceFile(f"--set {setting}", setting) for setting in plan.settings]
    checked = check_source(source, base=base, settings=settings, world_size=plan.world_size)
    return tuple(diagnostic.code.code for diagnostic in checked.diagnostics)


@pytest.mark.parametrize("plan", plans("rules"), ids=lambda plan: plan.path.stem)
def test_plan_has_its_findings(plan: BrokenPlan, base: Path) -> None:
    assert codes(plan, base=base) == plan.codes


@pytest.mark.parametrize("plan", plans("wild"), ids=lambda plan: plan.path.stem)
def test_unforeseen_plan_has_its_findings(plan: BrokenPlan, base: Path) -> None:
    assert codes(plan, base=base) == plan.codes


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_is_declared_with_tests_that_run(fault: Fault) -> None:
    proof = proof_of(fault)
    assert proof is not None
    own = f"tests/catalogue/test_catalogue.py::test_plan_has_its_findings[{fault.id}]"
    assert [test for test in proof.tests if test != own and not exists(test)] == []


def test_nothing_is_declared_that_is_no_fault() -> None:
    ids = {fault.id for fault in FAULTS}
    declared = [*PROOFS, *(path.stem for path in (HERE / "rules").iterdir())]
    assert set(declared) == ids
    assert len(declared) == len(ids)


def test_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/catalogue/test_catalogue.py::test"
    assert exists(f"{here}_a_test_that_is_gone_is_noticed")
    assert not exists(f"{here}_a_test_that_never_was")
    assert not exists("tests/parity/test_parity.py::test_every_mesh_trains_as_one_process")  # slow
    assert not exists("tests/graph/test_graph_verify.py::test_planted_violation_is_found[never planted]")


MODELS = (
    *sorted((HERE / "models").iterdir()),
    *(PLANS / "models" / name for name in ("tiny-deepseek-v3", "tiny-gemma2", "tiny-mamba", "tiny-phi3")),
)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_inventory_of_a_model_is_that_of_its_configuration(folder: Path) -> None:
    assert dumps(probe(folder)) == (folder / "inventory.json").read_text(encoding="utf-8")
