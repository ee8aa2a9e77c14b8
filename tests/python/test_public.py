"""What `planc` offers to programs: a list of names and signatures, which may only grow within a version."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import planc
from tests.patience import WAIT_SECONDS

GOLDEN = Path(__file__).parent / "goldens" / "public.txt"


def described(name: str, found: Any) -> Iterator[str]:
    """The lines of one public name: its signature, and a class's own public attributes."""
    if not isinstance(found, type):
        yield f"{name}{inspect.signature(found)}" if callable(found) else f"{name}: {type(found).__name__}"
        return
    bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
    head = f"class {name}{f'({bases})' if bases else ''}"
    if issubclass(found, enum.Enum):
        yield f"{head}: {', '.join(f'{one.name} = {one.value}' for one in found)}"
        return
    yield f"{head}{inspect.signature(found)}"
    given = {one.name for one in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    for attribute, value in sorted(vars(found).items()):
        if attribute.startswith("_") or attribute in given:
            continue
        if isinstance(value, property) and value.fget is not None:
            yield f"  {attribute}: {inspect.signature(value.fget).return_annotation}"
        elif isinstance(value, types.FunctionType):
            yield f"  {attribute}{inspect.signature(value)}"


def test_the_public_names_and_signatures_are_these(match_golden: Callable[[Path, str], None]) -> None:
    names = sorted(name for name in planc.__all__ if name != "__version__")
    lines = [line for name in names for line in described(name, getattr(planc, name))]
    match_golden(GOLDEN, "\n".join(lines).replace("'", "") + "\n")


def test_every_public_name_has_a_docstring_and_is_typed() -> None:
    assert (Path(planc.__file__).parent / "py.typed").exists()
    for name in planc.__all__:
        if name != "__version__":
            assert getattr(planc, name).__doc__, name
    stub = Path(planc.__file__).read_text(encoding="utf-8")
    for name, home in planc._HOMES.items():
        assert f"from {home} import {name} as {name}\n" in stub, name


def in_new_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_planc_imports_nothing_else_of_it() -> None:
    program = "import sys; before = {*sys.modules}; import planc; print(*({*sys.modules} - before))"
    found = {name.partition(".")[0] for name in in_new_process(program).split()}
    assert "planc" in found and "torch" not in found
    assert found - {"planc"} <= sys.stdlib_module_names


def test_checking_and_compiling_import_no_torch() -> None:
    plan = "plans/launch-one-process.plan"
    program = (
        f"import planc, sys; planc.compile('{plan}'); is_ok = planc.check('{plan}').ok;"
        "print(is_ok, 'torch' in sys.modules)"
    )
    assert in_new_process(program) == "True False\n"


def test_the_module_that_torchrun_starts_does_not_hide_the_function() -> None:
    """`import planc.run` puts the module where `planc.run` looks for the function."""
    program = "import planc, planc.run; print(type(planc.run).__name__); planc.run(b'x')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.stdout == "_Module\n"
    assert "TypeError" in done.stderr.splitlines()[-1]


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(planc, "trian")
