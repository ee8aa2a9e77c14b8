"""Data sources as data: their names, their arguments, and what they read. Registered here."""

from __future__ import annotations

from collections.abc import Mapping

from planc.data_sources.source import SourceKind, SourceName

SOURCES: tuple[SourceKind, ...] = (
    SourceKind("text", ("patterns",)),
    SourceKind("jsonl", ("field", "patterns")),
    SourceKind(
        "chat",
        (
            *("field", "train_on", "train_on_end_of_turn", "thinking", "template", "date", "ignore"),
            *("patterns", "split", "subset"),
        ),
        libraries=("jinja2",),
    ),
    SourceKind("hf_dataset", ("field", "patterns", "split", "subset"), libraries=("datasets", "pyarrow")),
    SourceKind(
        "hf_hub",
        ("repository", "revision", "split", "subset", "field"),
        reads_local_files=False,
        libraries=("datasets", "pyarrow"),
    ),
    SourceKind("python_stdlib", (), reads_local_files=False),
)
BY_NAME: Mapping[str, SourceKind] = {kind.name: kind for kind in SOURCES}

__all__ = ["BY_NAME", "SOURCES", "SourceKind", "SourceName"]
