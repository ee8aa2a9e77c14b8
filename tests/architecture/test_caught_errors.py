"""Who catches all errors catches panics too, which are no Exceptions, and lets a program end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.files import FILES, tree, walk

PURE = (
    "planc/inventory/probe/",
    "planc/runtime/checkpoint_format/unpickle_dcp.py",
    "planc/runtime/data/encoding/template.py",
)
"""Where `except Exception` suffices: models' own Python and torch, stubs, and Jinja. None calls into Rust."""
PASSED_ON = (
    "planc/runtime/data/ahead.py",
    "planc/runtime/data/encoding/loaded.py",
    "planc/runtime/data/encoding/parsed.py",
    "planc/runtime/data/encoding/worker.py",
    "planc/runtime/torch/checkpoint/background.py",
    "planc/runtime/trackers/following.py",
    "planc/verify/pool.py",
)
"""Threads and processes of their own, which hand every error to whoever waits for them."""


def caught(handler: ast.ExceptHandler) -> str:
    return "BaseException" if handler.type is None else ast.unparse(handler.type)


def faults(module: ast.Module, *, path: str) -> Iterator[int]:
    """The lines of handlers that miss panics, or catch what ends a program."""
    for node in walk(module):
        stops = False
        for handler in node.handlers if isinstance(node, ast.Try) else ():
            kind = caught(handler)
            stops |= "STOPS" in kind or kind == "SystemExit"
            if kind == "Exception" and not path.startswith(PURE):
                yield handler.lineno
            raises_again = any(isinstance(one, ast.Raise) and one.exc is None for one in ast.walk(handler))
            if kind == "BaseException" and not (stops or raises_again or path in PASSED_ON):
                yield handler.lineno


def test_all_errors_are_caught_as_such() -> None:
    assert [f"{path}:{line}" for path in FILES for line in faults(tree(path), path=path)] == []


@pytest.mark.parametrize(
    ("handlers", "num_faults"),
    [
        ("except Exception: pass", 1),
        ("except BaseException: pass", 1),
        ("except: pass", 1),
        ("except BaseException: raise", 0),
        ("except STOPS: raise\nexcept BaseException: pass", 0),
        ("except ValueError: pass", 0),
    ],
)
def test_the_rule(handlers: str, num_faults: int) -> None:
    found = list(faults(ast.parse(f"try:\n  pass\n{handlers}"), path="planc/x.py"))
    assert len(found) == num_faults
