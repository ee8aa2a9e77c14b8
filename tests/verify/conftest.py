"""The models of the parity suite; each of their plans is shrunk, and trained in one process, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.source import SourceFile
from planc.verify.reference import Training
from planc.verify.shrink import Shrunk
from planc.verify.verify import prepare
from tests.parity.cases import Case, make_workspace, plan_text


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan's small twin in a folder of its own."""

    shrunk: Shrunk
    training: Training
    folder: Path


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("verify") / "workspace")


def checked(case: Case, *, workspace: Path) -> Checked:
    settings = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(case.settings)]
    found = check_source(SourceFile("case.plan", plan_text(case)), base=workspace, settings=settings)
    assert found.graph is not None, [str(one) for one in found.diagnostics]
    return found


@pytest.fixture(scope="session")
def prepared(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Prepared]:
    made: dict[str, Prepared] = {}

    def once(case: Case) -> Prepared:
        text = "\n".join((plan_text(case), *case.settings))
        if text not in made:
            folder = tmp_path_factory.mktemp("plan")
            plan = checked(case, workspace=workspace)
            assert plan.bound is not None and plan.graph is not None
            shrunk, training = prepare(plan.bound, plan.graph, base=workspace, folder=folder)
            made[text] = Prepared(shrunk, training, folder)
        return made[text]

    return once
