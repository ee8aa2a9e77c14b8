"""Who may write a size or a count by himself, and how numbers are written in all of planc's sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.files import FILES, tree, walk

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "planc").rglob("*.py"))

WRITES_SIZES = {
    "planc/tables.py": "defines it",
    "planc/figures/figure.py": "every figure of a plan",
    "planc/show/estimate.py": "a device's memory",
    "planc/show/layout.py": "rows of single parameters",
    "planc/checks/run/does_not_fit.py": "the peak and its parts in a finding; a test holds them to check",
    "planc/checks/run/pairs_in_memory.py": "what attention holds in a finding; a test holds it to check",
    "planc/checks/run/expectation_broken.py": "an expectation's figure, likewise",
    "planc/tune/search.py": "why a mesh is left out, of plans that are never made",
    "planc/tune/pipelines.py": "why a pipeline is left out, likewise",
    "planc/diff/expectations.py": "the limits that plans write, no figure of one",
    "planc/doctor/storage.py": "disks, and files of data",
    "planc/doctor/system.py": "/dev/shm",
    "planc/doctor/devices.py": "devices",
    "planc/cli/commands/checkpoint.py": "files of a checkpoint",
    "planc/cli/commands/data.py": "files of data",
    "planc/cli/commands/teacher.py": "files of stored logits",
    "planc/cli/support/byte_progress.py": "how much data is read",
    "planc/runtime/torch/checkpoint/base.py": "files of a model",
    "planc/runtime/torch/agreement/prepared_data.py": "how much data is read",
    "planc/runtime/data/encoding/client.py": "the memory that a process may take",
}
"""Files that turn bytes into text, and of what: none but one of a plan's figures."""


def format_specs(module: ast.Module) -> Iterator[str]:
    """What stands behind the colons of a file's f-strings."""
    for node in walk(module):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            yield from (str(part.value) for part in node.format_spec.values if isinstance(part, ast.Constant))


def test_numbers_are_grouped_as_plans_group_them() -> None:
    assert [f"{path}: {spec}" for path in FILES for spec in format_specs(tree(path)) if "," in spec] == []


def test_a_comma_in_a_format_is_found() -> None:
    assert [*format_specs(ast.parse('f"{a:,} {b:>{width},.1f} {c:_}"'))] == [",", ">", ",.1f", "_"]


def test_only_figures_write_the_sizes_of_a_plan() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if "format_bytes" in path.read_text(encoding="utf-8")
    }
    assert users <= set(WRITES_SIZES), "print a figure of planc/figures instead"


def test_fsdp_units_have_one_name() -> None:
    """`fsdp` is the block of a plan; its units are FSDP units."""
    found = {
        path
        for path in FILES
        for node in walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "fsdp unit" in node.value
    }
    assert found == set()
