"""Words of the language, and slips in them that parse as something else."""

from __future__ import annotations

from planc.diagnostics.suggest import closest
from planc.syntax import ast

KEYWORDS = ("param", "override", "extends", "import", "extension", "use")


def slip_of_keyword(block: ast.Block) -> str | None:
    """The help for `extnds "base.plan"`, which reads as a block without braces; None for other blocks."""
    near = closest(block.kind.text, KEYWORDS) if block.label and not block.body else None
    return f"did you mean `{near}`?" if near else None
