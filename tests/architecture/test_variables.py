"""Variables are named by what they hold: names that fit anything may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.architecture.files import FILES, tree, walk

MOST = {"found": 427, "one": 766}
"""How often each name may be given to a variable or parameter. Name a new one by what it holds."""


def named(module: ast.Module) -> Counter[str]:
    """How often a module gives each of these names to something."""
    return Counter(name for node in walk(module) for name in (_bound(node),) if name in MOST)


def _bound(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
        case _:
            return ""


def test_names_that_fit_anything_become_fewer() -> None:
    counts: Counter[str] = Counter()
    for path in FILES:
        counts.update(named(tree(path)))
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}


@pytest.mark.parametrize(
    "text", ["found = 1", "for one in x: pass", "f = lambda one: 1", "def f(*, found): pass", "(found := 1)"]
)
def test_each_way_to_name_is_counted(text: str) -> None:
    assert named(ast.parse(text)).total() == 1
