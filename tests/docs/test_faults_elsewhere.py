"""The page on faults of other trainers names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "faults-elsewhere.md"


def test_every_fault_of_another_trainer_has_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    faults = [row for row in rows if not row.startswith(("| reported", "| ---"))]
    assert len(faults) >= 17
    for fault in faults:
        (named,) = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", fault)
        tree = ast.parse((ROOT / named[0]).read_text(encoding="utf-8"))
        assert named[1] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, fault
