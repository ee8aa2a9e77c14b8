"""The import law: data flows one way, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache

import pytest

from tests.architecture.files import FILES, ROOT, tree, walk
from tests.architecture.law import INSIDE, LAW, LIBRARIES, SHARED
from tests.patience import WAIT_SECONDS

PACKAGE = ROOT / "planc"


@cache
def imported(path: str) -> tuple[str, ...]:
    """Every module that a file imports, inside functions too."""
    found: list[str] = []
    for node in walk(tree(path)):
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def test_the_law_names_every_package() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    packages = modules | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages - {"__init__"} == set(LAW)


@pytest.mark.parametrize("name", LAW)
def test_imports_go_one_way(name: str) -> None:
    below = list(LAW)[: list(LAW).index(name)]
    assert {target.split(".")[0] for target in LAW[name]} <= set(below)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", LAW)
def test_the_law_allows_no_more_than_is_imported(name: str) -> None:
    """An entry that nothing uses would hide where a package really stands."""
    files = [path for path in FILES if path.split("/")[1].removesuffix(".py") == name]
    modules = {module.removeprefix("planc.") for path in files for module in imported(path)}
    unused = {entry for entry in LAW[name] if not any(_is_in(module, entry) for module in modules)}
    assert unused == set()


def test_a_file_imports_only_what_the_law_allows() -> None:
    unlawful = []
    for path in FILES:
        part = path.split("/")[1].removesuffix(".py")
        entries = () if part == "__init__" else (*LAW[part], *SHARED, part)
        for module in imported(path) if entries else ():
            target = module.removeprefix("planc.")
            is_lawful = target == module or any(_is_in(target, entry) for entry in entries)
            unlawful.extend([] if is_lawful else [f"{path} imports {module}"])
    assert unlawful == []


@pytest.mark.parametrize("package", INSIDE)
def test_rooms_inside_of_a_package_import_one_way(package: str) -> None:
    law = INSIDE[package]
    for place, name in enumerate(law):
        assert set(law[name]) <= set(list(law)[:place]), name


@pytest.mark.parametrize("package", INSIDE)
def test_rooms_import_what_the_law_inside_of_their_package_allows_and_no_less(package: str) -> None:
    law, start = INSIDE[package], f"planc.{package}."
    found: dict[str, set[str]] = {name: set() for name in law}
    for path in FILES:
        name = path.removesuffix(".py").replace("/", ".")
        room = name.removeprefix(start).split(".")[0]
        if name.startswith(start) and room != "__init__":
            modules = (one.removeprefix(start) for one in imported(path) if one.startswith(start))
            found[room] |= {module.split(".")[0] for module in modules} - {room}
    assert found == {name: set(rooms) for name, rooms in law.items()}


def _is_in(module: str, entry: str) -> bool:
    return module == entry or module.startswith(f"{entry}.")


def test_a_library_is_imported_only_in_its_rooms() -> None:
    misplaced = []
    for path in FILES:
        for module in imported(path):
            rooms = LIBRARIES.get(module.split(".")[0])
            misplaced.extend([] if rooms is None or path.startswith(rooms) else [f"{path} imports {module}"])
    assert misplaced == []


def test_private_parts_of_torch_are_named_in_one_file() -> None:
    """One for each package that needs any. What is copied into scripts has to import them itself."""
    found = [
        f"{path} imports {module}: name it in private.py"
        for path in FILES
        if not path.endswith("/private.py")
        for module in imported(path)
        if module.startswith("torch.") and any(part.startswith("_") for part in module.split("."))
    ]
    assert found == []


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
