"""The type of a source's record."""

from __future__ import annotations

from typing import Literal

from planc.record import record

SourceName = Literal["text", "jsonl", "chat", "hf_dataset", "hf_hub", "python_stdlib"]


@record
class SourceKind:
    """One kind of data source."""

    name: SourceName
    """In plans and graphs."""
    arguments: tuple[str, ...]
    """The names are those of plans, graphs and runs. Fingerprints depend on the order."""
    reads_local_files: bool = True
    """Whether `patterns` match files of the plan's author, which must exist before a run starts."""
    libraries: tuple[str, ...] = ()
    """Libraries whose versions may change what is read."""
