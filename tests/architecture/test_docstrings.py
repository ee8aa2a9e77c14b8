"""A docstring's first sentence says what a thing is or does: a verb, or a noun phrase with its head."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.files import FILES, tree

HEADLESS = ("As", "By", "For", "From", "In", "Of", "That", "Those", "To", "With")
"""Words that lean on a head before them, which a reader of the docstring alone does not have."""


def first_words(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The line of each definition with a docstring, and the docstring's first word."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words:
                yield getattr(node, "lineno", 1), words[0]


def headless(module: ast.Module) -> list[int]:
    return [line for line, word in first_words(module) if word in HEADLESS]


def test_no_docstring_begins_without_its_head() -> None:
    assert [f"{path}:{line}" for path in FILES for line in headless(tree(path))] == []


@pytest.mark.parametrize(("docstring", "is_headless"), [("Of every layer.", True), ("Often read.", False)])
def test_a_docstring_without_a_head_is_found(docstring: str, is_headless: bool) -> None:
    assert bool(headless(ast.parse(f'def f():\n    """{docstring}"""'))) == is_headless
