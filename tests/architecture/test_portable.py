"""What works on one system alone is asked for only where it is used, and texts are the same on all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.files import FILES, tree, walk
from tests.platforms.pretend import POSIX_MODULES, POSIX_NAMES

_OF_RUNS = ("planc/runtime/", "planc/cli/running/watching.py", "planc/cli/run", "planc/verify/")
"""What Windows never gets to, or only after a look at the system; `tests/platforms` runs the rest."""
_EVERYWHERE = [path for path in FILES if not path.startswith(_OF_RUNS)]


def calls(paths: list[str]) -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the files: where it is, the last part of what is called, and the call."""
    for path in paths:
        for node in walk(tree(path)):
            if isinstance(node, ast.Call):
                function = node.func
                name = getattr(function, "attr", None) or getattr(function, "id", "")
                yield f"{path}:{node.lineno}", name, node


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


def test_texts_are_utf8_whatever_the_locale() -> None:
    bare = []
    for place, name, call in calls(FILES):
        # There a tracker's function has this name.
        is_text = mode_of(name, call) is not None and "trackers/following.py" not in place
        is_process = name in ("run", "Popen", "check_output") and "text" in keywords(call)
        bare.extend([place] if (is_text or is_process) and "encoding" not in keywords(call) else [])
    assert bare == []


def test_what_is_written_has_the_same_line_ends_everywhere() -> None:
    written = (
        (place, call)
        for place, name, call in calls(_EVERYWHERE)
        if set(mode_of(name, call) or "") & set("wax+")
    )
    assert [place for place, call in written if "newline" not in keywords(call)] == []


def test_modules_of_posix_are_imported_where_they_are_used() -> None:
    found = []
    for path in FILES:
        for node in tree(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names.extend([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            found.extend(f"{path}:{node.lineno}: {name}" for name in names if name in POSIX_MODULES)
    assert found == []


def test_names_of_posix_are_left_to_runs() -> None:
    found = []
    for path in _EVERYWHERE:
        for node in walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                is_of_posix = node.attr in POSIX_NAMES.get(node.value.id, ())
                found.extend([f"{path}:{node.lineno}: {node.value.id}.{node.attr}"] if is_of_posix else [])
    assert found == []
