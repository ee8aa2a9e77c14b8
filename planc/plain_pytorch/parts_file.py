"""Select the definitions that a script needs from `parts.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_PARTS = Path(__file__).with_name("parts.py")
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
    source = _PARTS.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = source.splitlines()
    definitions = {
        node.name: _text(node, lines)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    used = _used(body, definitions)
    parts = [text for name, text in definitions.items() if name in used]
    code = "\n\n\n".join((*parts, body))
    names = _words(code)
    imports = [*_imports(tree), *_imports(ast.parse(_FOR_MAIN))]
    return f"{_import_lines(imports, names)}\n\n\n{code}"


def _text(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> str:
    first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
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
