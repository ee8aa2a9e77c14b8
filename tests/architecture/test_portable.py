"""What works on one system alone is asked for only where it is used, and texts are the same on all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platforms.pretend import POSIX_MODULES, POSIX_NAMES

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "planc").rglob("*.py"))

_OF_RUNS = ("planc/runtime/", "planc/cli/running/watching.py", "planc/cli/run", "planc/verify/")
"""What Windows never gets to, or only after a look at the system; `tests/platforms` runs the rest."""
_COPIED = "planc/plain_pytorch/parts.py"
"""Its text becomes a script, which runs where a run does."""


def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def calls(path: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file with the last part of what is called."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", None) or getattr(function, "id", "")
            yield name, node


def mode_of(name: str, call: ast.Call) -> str | None:
    """The mode in which a call opens a file as text; None for what opens none, or bytes."""
    if name in ("read_text", "write_text"):
        return name[0]
    if name not in ("open", "fdopen", "NamedTemporaryFile"):
        return None
    is_method = isinstance(call.func, ast.Attribute) and name == "open"
    module = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(module, ast.Name) and module.id == "os" and name == "open":
        return None
    position = 0 if is_method or name == "NamedTemporaryFile" else 1
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given.extend(call.args[position : position + 1])
    if given and not isinstance(given[0], ast.Constant):
        return None
    mode = given[0].value if given else "r"
    # Another `open` takes something else.
    is_mode = isinstance(mode, str) and set(mode) <= set("rwaxbt+")
    return mode if is_mode and "b" not in mode else None


def keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


@pytest.mark.parametrize("path", FILES)
def test_texts_are_utf8_whatever_the_locale(path: str) -> None:
    for name, call in calls(path):
        # There a tracker's function has this name.
        if mode_of(name, call) is not None and not path.endswith("trackers/following.py"):
            assert "encoding" in keywords(call), f"{path}:{call.lineno}: {name} without an encoding"
        if name in ("run", "Popen", "check_output") and "text" in keywords(call):
            assert "encoding" in keywords(call), f"{path}:{call.lineno}: a process without an encoding"


@pytest.mark.parametrize("path", [path for path in FILES if not path.startswith((*_OF_RUNS, _COPIED))])
def test_what_is_written_has_the_same_line_ends_everywhere(path: str) -> None:
    for name, call in calls(path):
        mode = mode_of(name, call)
        if mode is not None and set(mode) & set("wax+"):
            assert "newline" in keywords(call), f"{path}:{call.lineno}: {name} without newline"


@pytest.mark.parametrize("path", FILES)
def test_modules_of_posix_are_imported_where_they_are_used(path: str) -> None:
    for node in tree(path).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names.extend([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        assert not set(names) & set(POSIX_MODULES), f"{path}:{node.lineno}: imports {names}"


@pytest.mark.parametrize("path", [path for path in FILES if not path.startswith((*_OF_RUNS, _COPIED))])
def test_names_of_posix_are_left_to_runs(path: str) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = POSIX_NAMES.get(node.value.id, ())
            assert node.attr not in names, f"{path}:{node.lineno}: {node.value.id}.{node.attr}"
