"""The base of ops that name a source."""

from __future__ import annotations

from typing import Literal

from planc.data_sources import SourceName
from planc.graph.op import Op
from planc.record import record


@record(kw_only=True)
class SourceOp(Op):
    """A source and its arguments; those of other kinds are empty."""

    source: SourceName | Literal["mixture"]
    """`mixture` is that of all `data.open_source` ops."""
    patterns: tuple[str, ...]
    """Globs of files; for hf_hub, the repository."""
    field: str | None
    """None for the keys that conversations usually have."""
    train_on: str = ""
    """For chat: answers, last_answer or all."""
    thinking: str = ""
    """For chat: last or all."""
    template: str = ""
    """For chat: auto, none, or a file."""
    date: str | None = None
    ignore: tuple[str, ...] = ()
    """For chat: keys of rows that are not read."""
    revision: str = ""
    """For hf_hub, as are split and subset."""
    split: str = ""
    subset: str | None = None
