"""A run continues in a directory with damaged entries, or names one; it never hangs or follows links."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import runs
from tests.faults.entry_damage import DAMAGES
from tests.faults.folder_damage import damaged, folder_row, prepare_begun, targets

QUICK = (
    ("metrics.jsonl", "cut after an inner brace"),
    ("metrics.jsonl", "with a byte that is not UTF-8"),
    ("metrics.jsonl", "a named pipe"),
    ("metrics.jsonl", "a directory"),
    ("metrics.jsonl", "with numbers of 400 digits"),
    ("status.json", "a directory"),
    ("status.json", "with numbers beyond all"),
    ("checkpoints/step-2/manifest.json", "with numbers of 400 digits"),
    (".lock", "a link to a file outside"),
    ("plans", "a link to a directory outside"),
    ("logs/rank-0.jsonl", "a link to a file outside"),
    ("checkpoints/step-5", "a dangling link"),
    ("checkpoints/step-5", "emptied"),
    ("checkpoints/step-3.tmp", "emptied"),
    ("checkpoints", "a link to a directory outside"),
)
"""What an audit has found, and one of each kind."""


@pytest.fixture(scope="module")
def begun(stage: runs.Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_begun(stage, tmp_path_factory.mktemp("begun") / "run")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("name", "damage"), QUICK)
def test_a_damaged_entry_is_set_aside_or_refused(
    name: str, damage: str, stage: runs.Stage, begun: Path, tmp_path: Path
) -> None:
    [target] = [one for one in targets(begun) if one.name == name]
    assert damaged(tmp_path, stage=stage, begun=begun, target=target, damage=damage).problem == ""


def test_every_entry_that_a_run_leaves_is_a_target(begun: Path) -> None:
    known = {target.name for target in targets(begun)}
    there = {path.relative_to(begun).as_posix() for path in begun.rglob("*")}
    # One step represents all.
    assert {name for name in there if not name.startswith("checkpoints/step-1")} <= known
    assert {target.name for target in targets(begun) if target.is_there} <= there


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_entry_survives_every_damage(damage: str, stage: runs.Stage, tmp_path: Path) -> None:
    assert list(folder_row(tmp_path, stage=stage, damages=(damage,)).problems()) == []
