"""A cache of rehearsals without failures, by graph and library versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import planc
from planc.graph.graph import Graph, plan_hash
from planc.runtime.files.plain_files import replace
from planc.runtime.rehearsal.findings import Measured, Rehearsal, SegmentPeak, Sent
from planc.strict_json import loads
from planc.vocab import MeshDim

_FORMAT = 4


def load(graph: Graph, *, cache_dir: Path) -> Rehearsal | None:
    """The cached rehearsal of this graph with the installed libraries; None if missing or unreadable.

    Without the libraries there is none: a rehearsal needs them.
    """
    try:
        text = _path(graph, cache_dir).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, PackageNotFoundError):
        return None
    try:
        return _rehearsal(loads(text))
    except (ValueError, TypeError, KeyError):
        return None


def save(rehearsal: Rehearsal, *, graph: Graph, cache_dir: Path) -> None:
    """Store a rehearsal without failures. An unwritable cache is not an error of the plan."""
    if rehearsal.failures:
        return
    path = _path(graph, cache_dir)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, (json.dumps(asdict(rehearsal)).encode(),))


def _path(graph: Graph, cache_dir: Path) -> Path:
    # The graph's hash covers the model's config; the sources of ops and handlers cover changes of planc.
    parts = (_FORMAT, planc.__version__, version("torch"), version("transformers"), plan_hash(graph))
    hashed = hashlib.sha256("\n".join(map(str, parts)).encode())
    package = Path(planc.__path__[0])
    runtime = package / "runtime"
    folders = (package / "graph" / "ops", package / "modeling", runtime / "torch", runtime / "rehearsal")
    sources = (path for folder in folders for path in folder.rglob("*.py"))
    for source in sorted(sources):
        hashed.update(source.read_bytes())
    digest = hashed.hexdigest()
    return cache_dir / "rehearsals" / f"{digest}.json"


def _rehearsal(found: dict[str, Any]) -> Rehearsal:
    measured = found["measured"]
    return Rehearsal(
        ranks=tuple(found["ranks"]),
        num_layers=found["num_layers"],
        num_rehearsed_layers=found["num_rehearsed_layers"],
        failures=(),
        measured=None if measured is None else _measured(measured),
    )


def _measured(content: dict[str, Any]) -> Measured:
    return Measured(
        rank=content["rank"],
        sent=tuple(Sent(**{**one, "over": tuple(map(MeshDim, one["over"]))}) for one in content["sent"]),
        segments=tuple(
            SegmentPeak(**{**one, "parts": tuple((name, size) for name, size in one["parts"])})
            for one in content["segments"]
        ),
        held_bytes=content["held_bytes"],
        reserved_bytes=content["reserved_bytes"],
        notes=tuple(content["notes"]),
    )
