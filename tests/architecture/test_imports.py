"""The import law: data flows one way, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "planc"

ALLOWED: dict[str, set[str]] = {
    "record": set(),
    "strict_json": set(),
    "source": set(),
    "vocab": set(),
    "devices": set(),
    "highlight": set(),
    "launchers": {"devices"},
    "hub": set(),
    "secrets": set(),
    "diagnostics": {"source", "vocab"},
    "syntax": {"source", "vocab", "diagnostics"},
    "fmt": {"source", "vocab", "diagnostics", "syntax"},
    "modeling": set(),
    "inventory": {
        *("source", "vocab", "hub", "diagnostics", "modeling", "modeling", "hub"),
        *("inventory.randomness", "modeling", "modeling"),
    },
    "styles": {"source", "vocab", "inventory.schema"},
    "graph": {"source", "vocab", "diagnostics", "styles", "strict_json"},
    "plan": {"source", "vocab", "devices", "hub", "diagnostics", "syntax", "styles", "inventory.schema"},
    "checks": {
        *("source", "vocab", "devices", "diagnostics", "syntax", "styles", "inventory.schema", "plan"),
        *("layouts", "show.table"),
    },
    "layouts": {"inventory.schema", "plan", "vocab"},
    "estimate": {
        *("source", "vocab", "devices", "devices", "styles", "inventory.schema", "graph", "strict_json"),
    },
    "figures": {"vocab", "styles", "inventory.schema", "graph", "estimate", "show.table"},
    "plain_pytorch": {"source", "vocab", "hub", "styles", "graph"},
    "lower": {"source", "vocab", "diagnostics", "styles", "inventory.schema", "plan", "graph"},
    "capacity": {
        *("source", "vocab", "devices", "diagnostics", "styles", "inventory.schema", "graph", "plan"),
        *("checks", "lower", "estimate"),
    },
    "runtime": {
        *("source", "hub", "vocab", "devices", "diagnostics", "styles", "graph", "modeling"),
        *("modeling", "hub", "secrets", "modeling", "figures.model", "figures.plan"),
        *("modeling", "strict_json"),
    },
    "deep_check": {"source", "vocab", "diagnostics", "graph", "estimate", "figures", "runtime", "show.table"},
    "verify": {
        *("source", "vocab", "diagnostics", "styles", "inventory.schema", "plan", "graph", "lower"),
        *("runtime", "show.table", "inventory.randomness"),
    },
    "doctor": {
        *("source", "vocab", "hub", "diagnostics", "styles", "inventory.schema", "graph", "estimate"),
        *("runtime", "show.table"),
    },
    "show": {
        *("source", "vocab", "diagnostics", "syntax", "styles", "inventory", "plan", "graph", "estimate"),
        *("api", "figures", "fmt", "devices"),
    },
    "diff": {
        *("source", "vocab", "diagnostics", "syntax", "styles", "inventory", "plan", "graph", "estimate"),
        *("api", "figures", "show"),
    },
}
"""What each part may import besides itself and `record`; `api`, `cli`, `run`, `__main__` stand above all."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "torch": (
        *("planc/runtime/backends/torch/", "planc/inventory/probe.py", "planc/inventory/head_probe.py"),
        *("planc/inventory/attention_calls.py", "planc/inventory/routing_probe.py"),
        *("planc/inventory/output_uses.py", "planc/inventory/random_probe.py"),
        *("planc/inventory/forwards.py", "planc/inventory/known_values.py"),
        "planc/inventory/position_probe.py",
        *("planc/doctor/torch_probe.py", "planc/runtime/backends/rehearsal/", "planc/verify/"),
        *("planc/cli/run.py", "planc/modeling/first_positions.py", "planc/modeling/initialization.py"),
        *("planc/modeling/tensor_dtypes.py", "planc/inventory/tensor_dtypes.py"),
        # Nobody imports it: its text is copied into scripts.
        "planc/plain_pytorch/parts.py",
    ),
    "transformers": (
        *(
            "planc/modeling/initialization.py",
            "planc/modeling/tensor_dtypes.py",
            "planc/plain_pytorch/parts.py",
        ),
        *("planc/inventory/tensor_dtypes.py", "planc/runtime/backends/torch/"),
        *("planc/inventory/probe.py", "planc/inventory/attention_calls.py", "planc/inventory/model_class.py"),
        *("planc/inventory/random_probe.py", "planc/inventory/forwards.py"),
        "planc/inventory/position_probe.py",
        "planc/verify/",
    ),
    "safetensors": ("planc/runtime/backends/torch/", "planc/plain_pytorch/parts.py"),
    "tokenizers": ("planc/runtime/data/tokenizers.py",),
    "numpy": (
        *("planc/runtime/data/", "planc/runtime/backends/torch/", "planc/runtime/backends/rehearsal/"),
        *("planc/verify/", "planc/plain_pytorch/parts.py"),
    ),
    "lark": ("planc/syntax/",),
    "rich": ("planc/cli/",),
    "pygments": ("planc/highlight/",),
    "tensorboard": ("planc/runtime/trackers/tensorboard.py",),
    "wandb": ("planc/runtime/trackers/wandb.py",),
    "pydantic": ("planc/graph/artifact.py", "planc/runtime/checkpoints/"),
}
"""Which files may import a library, by the start of their path."""

FILES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))


def imported(path: str) -> Iterator[str]:
    """Every module that a file imports, inside functions too."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES)
def test_a_file_imports_only_what_lies_below_it(path: str) -> None:
    part = path.split("/")[1].removesuffix(".py")
    if part not in ALLOWED:
        edges = ("api", "cli", "run", "rendezvous", "__main__", "__init__")
        assert part in edges, f"{part} is not in the import law"
        return
    for module in imported(path):
        if not module.startswith("planc."):
            continue
        target = module.removeprefix("planc.")
        if target.split(".")[0] in ("__version__", "record", part):
            continue
        below = any(target == name or target.startswith(f"{name}.") for name in ALLOWED[part])
        assert below, f"{path} must not import {module}"


@pytest.mark.parametrize("path", FILES)
def test_a_library_is_imported_only_in_its_rooms(path: str) -> None:
    for module in imported(path):
        rooms = LIBRARIES.get(module.split(".")[0])
        assert rooms is None or path.startswith(rooms), f"{path} must not import {module}"


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith("planc/runtime/backends/torch/")])
def test_private_parts_of_torch_are_named_in_one_file(path: str) -> None:
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
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
