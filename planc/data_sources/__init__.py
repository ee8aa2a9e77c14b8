"""Data sources as data: their names, arguments, and what they read. Registered in the union `Source`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from planc.data_sources.kinds import Source, SourceKind

SOURCES: tuple[type[SourceKind], ...] = get_args(Source)
BY_NAME: Mapping[str, type[SourceKind]] = {
    kind.__dataclass_fields__["kind"].default: kind for kind in SOURCES
}

__all__ = ["BY_NAME", "SOURCES", "Source", "SourceKind"]
