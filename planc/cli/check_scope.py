"""What a check did not look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.plan.data import FileTokenizer
from planc.plan.spec import Plan, Weights
from planc.show.table import Row


def unread(plan: Plan, *, base: Path, is_deep: bool) -> Row:
    """`not read  weights, data; --deep also rehearses the run`: what only a run opens, and what can be done.

    A tokenizer's file that lies where the plan says was read, to count its ids.
    """
    rest = "" if is_deep else "; --deep also rehearses the run"
    return "not read", f"{', '.join(_unread(plan, base))}{rest}"


def _unread(plan: Plan, base: Path) -> Iterator[str]:
    if plan.model.weights is Weights.PRETRAINED:
        yield "weights"
    yield "data"
    tokenizer = plan.data.tokenizer
    if isinstance(tokenizer, FileTokenizer) and not (base / tokenizer.path).exists():
        yield "tokenizer (its file is not here)"
