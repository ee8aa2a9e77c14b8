"""Select the definitions that a script needs from `parts.py`, and from the draws of initial weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_MODELING = Path(__file__).parents[1] / "modeling"
_SOURCES = (
    *(_MODELING / name for name in ("private.py", "draws.py", "placed_draws.py")),
    Path(__file__).with_name("parts.py"),
)
"""In the order of a script: a constant comes before what uses it."""
_FOR_MAIN = """\
import contextlib
import json
import os
from datetime import timedelta
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module
)
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from transformers import AutoConfig, AutoModelForCausalLM
from functools import partial
"""
"""Imports that only `main` needs."""


def copied(body: str) -> str:
    """The imports and definitions that `body` uses, directly or indirectly, then `body` itself."""
    definitions: dict[str, str] = {}
    imports: list[tuple[str, str, str | None]] = []
    for path in _SOURCES:
        source = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), source.splitlines()
        imports += (one for one in _imports(tree) if not one[0].startswith("planc"))
        definitions |= {name: _text(node, lines) for node in tree.body for name in _defined(node)}
    used = _used(body, definitions)
    # Several constants can be assigned at once.
    parts = dict.fromkeys(text for name, text in definitions.items() if name in used)
    code = "\n\n\n".join((*parts, body))
    names = _words(code)
    return f"{_import_lines((*imports, *_imports(ast.parse(_FOR_MAIN))), names)}\n\n\n{code}"


def _defined(node: ast.stmt) -> Iterable[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (
            one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)
        )


def _text(node: ast.stmt, lines: list[str]) -> str:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    first = min((node.lineno, *(decorator.lineno for decorator in decorators)))
    return "\n".join(lines[first - 1 : node.end_lineno])


def _used(body: str, definitions: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    waiting = [body]
    while waiting:
        new = (_words(waiting.pop()) & definitions.keys()) - found
        found |= new
        waiting.extend(definitions[name] for name in new)
    return found


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _imports(tree: ast.Module) -> Iterable[tuple[str, str, str | None]]:
    """(module, name, alias) of each import; the name is empty for an import of the whole module."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            yield from ((node.module, alias.name, alias.asname) for alias in node.names)


def _import_lines(imports: Iterable[tuple[str, str, str | None]], names: set[str]) -> str:
    """The imports in use, the standard library's first."""
    whole: set[str] = set()
    of: dict[str, set[str]] = {}
    for module, name, other in imports:
        known = other or name or module.partition(".")[0]
        if known not in names:
            continue
        if name:
            of.setdefault(module, set()).add(name)
        else:
            whole.add(f"import {module} as {other}" if other else f"import {module}")
    lines = [*whole, *(f"from {module} import {', '.join(sorted(found))}" for module, found in of.items())]
    own, installed = (
        sorted(
            (line for line in lines if _is_installed(line) == kind), key=lambda line: (line[0] == "f", line)
        )
        for kind in (False, True)
    )
    return "\n".join((*own, "", *installed))


def _is_installed(line: str) -> bool:
    return line.split()[1].partition(".")[0] in ("numpy", "safetensors", "torch", "transformers")
