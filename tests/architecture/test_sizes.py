"""The size ratchet: taste shows in the tails, so the longest module and function may only get shorter."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "planc"

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_no_module_is_longer_than_the_ratchet() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_no_function_is_longer_than_the_ratchet() -> None:
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long[f"{path}:{node.name}"] = length
    assert long == {}
