"""A docstring's first sentence says what a thing is or does: a verb, or a noun phrase with its head."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.files import FILES, tree, walk

_PREPOSITIONS = ("As", "By", "For", "From", "In", "Of", "To", "With")
_PRONOUNS = ("That", "Those", "What", "Which")
HEADLESS = (*_PREPOSITIONS, *_PRONOUNS, "How", "Where", "Why")
"""Words that lean on a head before them, which a reader of the docstring alone does not have."""


def first_words(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the first word of each docstring: those of fields and of constants follow them."""
    for node in walk(module):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if text.split():
                    yield statement.lineno, text.split()[0]


def headless(module: ast.Module) -> list[int]:
    return [line for line, word in first_words(module) if word.rstrip(",") in HEADLESS]


def test_no_docstring_begins_without_its_head() -> None:
    assert [f"{path}:{line}" for path in FILES for line in headless(tree(path))] == []


@pytest.mark.parametrize(
    ("docstring", "is_headless"),
    [
        ("Of every layer.", True),
        ("What a run reads.", True),
        ("Where, and what it is.", True),
        ("Often read.", False),
        ("Whatever raises is an error.", False),
    ],
)
@pytest.mark.parametrize(
    "place", ["", "def f():\n    ", "class A:\n    ", "class A:\n    x: int\n    ", "X = 1\n"]
)
def test_a_docstring_without_a_head_is_found(place: str, docstring: str, is_headless: bool) -> None:
    assert bool(headless(ast.parse(f'{place}"""{docstring}"""'))) == is_headless
