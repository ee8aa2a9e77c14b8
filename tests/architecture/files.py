"""Every file of planc and its parsed text, for tests that read them all."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "planc").rglob("*.py"))


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def walk(module: ast.AST) -> tuple[ast.AST, ...]:
    """Every node below and with this one, as `ast.walk` has them: a second walk costs nothing."""
    return tuple(ast.walk(module))
