"""Row transforms: a row for each row of a data source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

ROW_TRANSFORM = Kind("row_transform", "data.source", passes=("row",))
RowTransform = TypeVar("RowTransform", bound=Callable[..., Any])


def row_transform(name: str) -> Callable[[RowTransform], RowTransform]:
    """Register a row transform: `source = transformed(jsonl("rows.jsonl"), by = NAME(argument = value))`.

    A row transform is a function of a row, a dict by column, that returns a row, or None to leave it out. It
    gets the rows of `jsonl`, `chat`, `hf_dataset` or `hf_hub` as they are in the files, and these read what
    it returns in their place. All other parameters are keyword-only, and get their values in the plan.

    Before the first step, planc tries some rows twice, in another order, and in another process: what is
    returned must depend on nothing but the row.
    """
    return lambda target: mark(ROW_TRANSFORM, target, name)
