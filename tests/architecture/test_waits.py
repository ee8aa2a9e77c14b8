"""No wait of a test has a limit of its own: a busy machine makes any that is short a fault of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
_WAITS = frozenset(("run", "wait", "communicate", "join", "result", "get", "check_output", "check_call"))
_LEAST_SECONDS = 5
"""Below it, a wait is expected to end by its timeout."""


def fixed_waits(tree: ast.AST) -> Iterator[int]:
    """The lines of calls that wait for a number of seconds that is written there."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        given = [word.value for word in call.keywords if word.arg == "timeout"]
        if call.func.attr == "wait":
            given += call.args
        for value in given:
            is_number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
            if call.func.attr in _WAITS and is_number and value.value >= _LEAST_SECONDS:
                yield call.lineno


def test_every_wait_is_as_patient_as_the_others() -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        for line in fixed_waits(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(), "use tests.patience.WAIT_SECONDS"


def test_a_wait_with_a_limit_of_its_own_is_found() -> None:
    text = "subprocess.run(x, timeout=60)\nprocess.wait(10)\nevent.wait(0.1)\nprocess.wait(WAIT_SECONDS)\n"
    assert [*fixed_waits(ast.parse(text))] == [1, 2]
