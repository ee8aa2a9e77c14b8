"""A plan that is only written otherwise means the same: every plan that ships, in every way to write it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.diff.differ import diff
from planc.diff.side import Side, side_of
from planc.diff.text import render_text
from tests.diff.rewriting import PLAN, REWRITES, Rewrite
from tests.plans import PLANS, canonical_plans


def side(path: Path) -> Side:
    found = side_of(check_plan(path), name=PLAN)
    assert found is not None, check_plan(path).diagnostics
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the plans that ship find beside them: models, and the files that they include."""
    folder = tmp_path_factory.mktemp("plans")
    for part in PLANS.iterdir():
        if part.is_dir() and part.name != "models":
            shutil.copytree(part, folder / part.name)
    (folder / "models").symlink_to(PLANS / "models")
    return folder


@pytest.mark.sampled(every=72)
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
@pytest.mark.parametrize("plan", canonical_plans(), ids=lambda plan: plan.stem)
def test_rewriting_is_no_semantic_change(plan: Path, rewrite: Rewrite, folder: Path) -> None:
    text = plan.read_text()
    files = rewrite(text)
    assert files[PLAN] != text
    for name, content in files.items():
        (folder / name).write_text(content)
    old, new = side(plan), side(folder / PLAN)
    found = diff(old, new)
    assert found.same_meaning, render_text(found, colour=False)
    assert "\nno semantic change\n" in render_text(found, colour=False)
    assert found.new.num_errors == found.old.num_errors == 0
