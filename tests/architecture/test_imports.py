"""The import law: data flows one way, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.law import LAW, LIBRARIES, PARTS, SHARED
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "planc"

FILES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))


def imported(path: str) -> Iterator[str]:
    """Every module that a file imports, inside functions too."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_law_names_every_package() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    packages = modules | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages - {"__init__"} == set(LAW)


@pytest.mark.parametrize("name", LAW)
def test_imports_go_one_way(name: str) -> None:
    below = list(LAW)[: list(LAW).index(name)]
    assert {target.split(".")[0] for target in LAW[name]} <= set(below)


@pytest.mark.parametrize("name", LAW)
def test_the_law_allows_no_more_than_is_imported(name: str) -> None:
    """An entry that nothing uses would hide where a package really stands."""
    files = [path for path in FILES if path.split("/")[1].removesuffix(".py") == name]
    modules = {module.removeprefix("planc.") for path in files for module in imported(path)}
    unused = {entry for entry in LAW[name] if not any(_is_in(module, entry) for module in modules)}
    assert unused == set()


@pytest.mark.parametrize("path", FILES)
def test_a_file_imports_only_what_the_law_allows(path: str) -> None:
    part = path.split("/")[1].removesuffix(".py")
    if part == "__init__":
        return
    for module in imported(path):
        if not module.startswith("planc."):
            continue
        target = module.removeprefix("planc.")
        allowed = any(_is_in(target, entry) for entry in (*LAW[part], *SHARED, part))
        assert allowed, f"{path} must not import {module}"


def _is_in(module: str, entry: str) -> bool:
    return module == entry or module.startswith(f"{entry}.")


@pytest.mark.parametrize("path", FILES)
def test_a_library_is_imported_only_in_its_rooms(path: str) -> None:
    for module in imported(path):
        rooms = LIBRARIES.get(module.split(".")[0])
        assert rooms is None or path.startswith(rooms), f"{path} must not import {module}"


@pytest.mark.parametrize("path", [path for path in FILES if path != PARTS])
def test_private_parts_of_torch_are_named_in_one_file(path: str) -> None:
    """One for each package that needs any. What is copied into scripts has to import them itself."""
    if path.endswith("/private.py"):
        return
    for module in imported(path):
        is_private = module.startswith("torch.") and any(part.startswith("_") for part in module.split("."))
        assert not is_private, f"{path} imports {module}; name it in private.py"


def test_check_leaves_heavy_libraries_unimported() -> None:
    program = (
        "import sys\n"
        "from planc.cli.main import main\n"
        "code = main(['check', 'plans/llama-3.1-405b.plan'])\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'rich', 'pydantic'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
