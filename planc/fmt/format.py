"""Source text to formatted text, and the proof that nothing but layout changed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from planc.diagnostics import Diagnostic
from planc.fmt.build import build
from planc.fmt.document import render
from planc.source import SourceFile, Span
from planc.syntax.codes import TOO_LARGE
from planc.syntax.parse import MAX_CHARACTERS, parse
from planc.syntax.tokens import comments as comments_of

WIDTH = 100
"""Columns of a line; what has no place to break may be longer."""


def format_source(source: SourceFile) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The formatted text of a plan, or what keeps it from being one.

    The result parses to the same tree, has the same comments in the same order, and formats to itself.
    AssertionError where it would not: no plan is ever rewritten into another.
    """
    source = SourceFile(source.name, source.text.replace("\r\n", "\n"))
    file, problems = parse(source)
    if file is None:
        return None, problems
    comments = comments_of(source)
    text = render(build(file, comments=comments), width=WIDTH)
    if len(text) > MAX_CHARACTERS:
        label = f"{len(text)} characters once formatted; a plan has at most {MAX_CHARACTERS}"
        return None, (TOO_LARGE.at(source.start(), label),)
    result = SourceFile(source.name, text)
    again, _ = parse(result)
    if again is None or tree_without_spans(again) != tree_without_spans(file):
        raise AssertionError(f"formatting would change what {source.name} means")
    if [comment.text for comment in comments_of(result)] != [comment.text for comment in comments]:
        raise AssertionError(f"formatting would change the comments of {source.name}")
    return text, problems


def tree_without_spans(node: object) -> object:
    """A tree's names and values as nested tuples: equal for texts that differ in layout alone."""
    if isinstance(node, tuple):
        return tuple(tree_without_spans(item) for item in node)
    if is_dataclass(node) and not isinstance(node, type):
        values = (getattr(node, field.name) for field in fields(node))
        kept = (tree_without_spans(value) for value in values if not isinstance(value, Span))
        return (type(node).__name__, *kept)
    return node
