"""What a run directory holds about its training, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any

from planc.record import record
from planc.runtime.files.plain_files import open_to_read, read_utf8
from planc.runtime.files.run_files import LOGS, METRICS_NAME, STATUS_NAME
from planc.runtime.run_directory.metrics_file import read_lines
from planc.strict_json import loads

_MAX_STATUS_BYTES = 2**20
_RANK_LOG = re.compile(r"rank-(\d+)\.jsonl")

Points = tuple[tuple[int, float], ...]
"""(step, value), in order of steps."""

LOGGED = ("loss", "grad_norm", "tokens_per_second", "learning_rate", "memory_bytes", "epoch")
"""The keys of metrics.jsonl that are read."""
_OF_SOURCE = ("loss", "labels", "tokens", "epoch")
_FINITE = ("tokens_per_second", "learning_rate", "memory_bytes", "labels", "tokens", "epoch")


@record
class RunRecord:
    """A run's status, its logged values by name, and the peak memory of each rank that kept a log.

    `evaluations` are the losses of each evaluation, `sources` the values of each source of a mixture.
    `memory_kind` is `allocated` or `process`. `num_damaged` lines of metrics.jsonl can't be read.
    """

    status: Mapping[str, Any]
    logged: Mapping[str, Points]
    evaluations: Mapping[str, Points]
    sources: Mapping[str, Mapping[str, Points]]
    memory_kind: str
    rank_memory: Mapping[int, int] = field(default_factory=dict)
    num_damaged: int = 0


def read_run(folder: Path) -> RunRecord:
    """The record of a run; values that it has not logged are absent. OSError for files that can't be read."""
    logged: dict[str, dict[int, float]] = {name: {} for name in LOGGED}
    evaluations: dict[str, dict[int, float]] = {}
    sources: dict[str, dict[str, dict[int, float]]] = {}
    kind, num_damaged = "process", 0
    for line in read_lines(folder / METRICS_NAME):
        try:
            fields = {} if line is None else loads(line.text.decode())
            values = _values(fields, LOGGED)
            of_sources = {str(one["label"]): _of_source(one) for one in fields.get("sources", ())}
            losses = {str(one["label"]): float(one["loss"]) for one in fields.get("evaluations", ())}
        except (ValueError, TypeError, KeyError):
            line = None
        if line is None:
            num_damaged += 1
            continue
        kind = str(fields.get("memory_kind", kind))
        for name, value in values.items():
            if name != "loss" or line.has_labels:
                logged[name][line.step] = value
        for label, numbers in of_sources.items():
            of_one = sources.setdefault(label, {})
            for name, value in numbers.items():
                of_one.setdefault(name, {})[line.step] = value
        for label, loss in losses.items():
            evaluations.setdefault(label, {})[line.step] = loss
    return RunRecord(
        status=_status(folder),
        logged={name: _points(values) for name, values in logged.items() if values},
        evaluations={name: _points(values) for name, values in evaluations.items()},
        sources={
            label: {name: _points(values) for name, values in numbers.items()}
            for label, numbers in sources.items()
        },
        memory_kind=kind,
        rank_memory=dict(sorted(_rank_memory(folder / LOGS))),
        num_damaged=num_damaged,
    )


def _of_source(fields: Mapping[str, Any]) -> dict[str, float]:
    """The values of a source in a step; its loss is null if the step has none of its labels."""
    return _values({name: one for name, one in fields.items() if one is not None}, _OF_SOURCE)


def _values(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: _value(name, fields[name]) for name in names if name in fields}


def _value(name: str, found: Any) -> float:
    """A logged number. ValueError or TypeError for another value; losses and norms may be NaN, sizes not."""
    value = float(found)
    if name in _FINITE and not isfinite(value):
        raise ValueError(name)
    return value


def _points(values: Mapping[int, float]) -> Points:
    return tuple(sorted(values.items()))


def _status(folder: Path) -> Mapping[str, Any]:
    """status.json; empty if it is missing or invalid, as after a crash."""
    try:
        found = loads(read_utf8(folder / STATUS_NAME, max_bytes=_MAX_STATUS_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rank_memory(folder: Path) -> Iterator[tuple[int, int]]:
    """(rank, peak bytes) of each rank's own log."""
    for path in sorted(folder.glob("rank-*.jsonl")) if folder.is_dir() else ():
        match = _RANK_LOG.fullmatch(path.name)
        peaks = [*_logged_memory(path)] if match else []
        if match and peaks:
            yield int(match[1]), max(peaks)


def _logged_memory(path: Path) -> Iterator[int]:
    with open_to_read(path) as stream:
        for line in stream:
            if b'"memory_bytes"' not in line:
                continue
            try:
                found = loads(line.decode())["memory_bytes"]
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(found, int):
                yield found
