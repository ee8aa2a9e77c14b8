"""A run's curves: what its directory holds, then loss, gradient norm, speed and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any

from planc.diff.side import Side
from planc.figures import plan as of_plan
from planc.figures import times
from planc.record import record
from planc.report.charts import Bar, Curve, bars, chart
from planc.report.html import Html, element, markup, paragraph, table
from planc.runtime.checkpoint_format.best import judged_losses, ranked
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.files.plain_files import open_to_read, read_utf8
from planc.runtime.files.run_files import CHECKPOINTS, LOGS, METRICS_NAME, STATUS_NAME
from planc.runtime.run_directory.metrics_file import read_lines
from planc.strict_json import loads
from planc.tables import plural

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
    `experts` are the tokens of the most and of the least used expert of any layer, as fractions of an equal
    share. `memory_kind` is `allocated` or `process`. `num_damaged` lines of metrics.jsonl can't be read.
    """

    status: Mapping[str, Any]
    logged: Mapping[str, Points]
    evaluations: Mapping[str, Points]
    sources: Mapping[str, Mapping[str, Points]]
    memory_kind: str
    experts: Mapping[str, Points] = field(default_factory=dict)
    custom: Mapping[str, Points] = field(default_factory=dict)
    """The metrics of the plan's own code, and of the program that started the run."""
    rank_memory: Mapping[int, int] = field(default_factory=dict)
    num_damaged: int = 0
    best: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """The step and the loss of the best checkpoint by each evaluation that judges them."""


def read_run(folder: Path) -> RunRecord:
    """The record of a run; values that it has not logged are absent. OSError for files that can't be read."""
    logged: dict[str, dict[int, float]] = {name: {} for name in LOGGED}
    evaluations: dict[str, dict[int, float]] = {}
    sources: dict[str, dict[str, dict[int, float]]] = {}
    experts: dict[str, dict[int, float]] = {}
    custom: dict[str, dict[int, float]] = {}
    kind, num_damaged = "process", 0
    for line in read_lines(folder / METRICS_NAME):
        try:
            fields = {} if line is None else loads(line.text.decode())
            values = _values(fields, LOGGED)
            of_sources = {str(one["label"]): _of_source(one) for one in fields.get("sources", ())}
            shares = [*_shares(fields.get("expert_load", {}))]
            losses = {str(one["label"]): float(one["loss"]) for one in fields.get("evaluations", ())}
            own = {str(name): float(value) for name, value in fields.get("custom", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError):
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
        for name, end in (("most used", max), ("least used", min)) if shares else ():
            experts.setdefault(name, {})[line.step] = end(shares)
        for of_name, numbers in ((evaluations, losses), (custom, own)):
            for name, value in numbers.items():
                of_name.setdefault(name, {})[line.step] = value
    return RunRecord(
        status=_status(folder),
        logged={name: _points(values) for name, values in logged.items() if values},
        evaluations={name: _points(values) for name, values in evaluations.items()},
        sources={
            label: {name: _points(values) for name, values in numbers.items()}
            for label, numbers in sources.items()
        },
        memory_kind=kind,
        custom={name: _points(values) for name, values in custom.items()},
        experts={name: _points(values) for name, values in experts.items()},
        rank_memory=dict(sorted(_rank_memory(folder / LOGS))),
        num_damaged=num_damaged,
        best=_best(folder) if evaluations else {},
    )


def _best(folder: Path) -> Mapping[str, tuple[int, float]]:
    """The best of the checkpoints that are there and can be read."""
    root, manifests = folder / CHECKPOINTS, []
    with suppress(CheckpointError):
        for step in committed_steps(root):
            with suppress(CheckpointError):
                manifests.append(read_manifest(step_directory(root, step=step)))
    judged = judged_losses(manifests)
    steps = {name: ranked(losses)[0] for name, losses in judged.items() if losses}
    return {name: (step, judged[name][step]) for name, step in steps.items()}


def _shares(load: Mapping[str, Sequence[int]]) -> Iterator[float]:
    """The tokens of every expert, in equal shares of its layer. TypeError or ValueError for other values."""
    for counts in load.values():
        total = sum(map(int, counts))
        yield from (int(count) * len(counts) / total for count in counts if total)


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


_GIB = 2**30
_MAX_RANKS = 64
"""The most ranks whose memory is drawn."""


def status_section(logged: RunRecord, side: Side) -> Html:
    """Render how the run ended, or how far it is, with its last logged values."""
    status = {name: value for name, value in logged.status.items() if value not in (None, [], "")}
    rows = [
        (name.replace("_", " "), _status_text(value)) for name, value in status.items() if name != "plan_hash"
    ]
    rows += [
        (f"best checkpoint by {name}", f"step-{step}, loss {loss:.4f}")
        for name, (step, loss) in logged.best.items()
    ]
    num_steps = of_plan.num_steps(side.graph).number
    for name, points in (*logged.logged.items(), *logged.custom.items()):
        step, value = points[-1]
        text = _written(name, value, logged)
        label = name.removesuffix("_bytes").replace("_", " ")
        rows.append((label, f"{text} at step {step:_} of {num_steps}"))
    damaged = []
    if logged.num_damaged:
        lines = plural(logged.num_damaged, "line")
        damaged.append(f"{METRICS_NAME} has {lines} that can't be read; the curves leave them out.")
    missing = [] if logged.status else ["status.json is missing or invalid."]
    return markup(table([*rows], caption="Status"), *_sources(logged), *map(paragraph, (*missing, *damaged)))


def _status_text(value: object) -> str:
    """`path runs/first/checkpoints/step-500, step 500` for a value of several fields."""
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{name.replace('_', ' ')} {field}" for name, field in value.items())


def _sources(logged: RunRecord) -> Iterator[Html]:
    """The last values of each source of a mixture."""
    rows = []
    for label, numbers in logged.sources.items():
        last = {name: points[-1] for name, points in numbers.items()}
        step, loss = last.get("loss", (0, 0.0))
        counts = (f"{round(last[name][1]):_}" if name in last else "" for name in ("labels", "tokens"))
        epoch = f"{last['epoch'][1]:.2f}" if "epoch" in last else ""
        rows.append((label, f"{_short(loss)} at step {step:_}" if step else "no labels", *counts, epoch))
    if rows:
        header = ("source", "loss", "labels per step", "tokens per step", "epoch")
        yield table(rows, header=header, caption="Sources, with their last logged values")


def curves_section(logged: RunRecord) -> Html:
    """The curves of all logged steps."""
    if not logged.logged:
        return paragraph(f"{METRICS_NAME} has no steps yet.")
    return markup(*_charts(logged), _by_rank(logged))


def _charts(logged: RunRecord) -> Iterator[Html]:
    losses = [Curve(name, points) for name, points in _one(logged, "loss")]
    losses += [
        Curve(f"evaluation {name}", points, is_line=len(points) > 1)
        for name, points in logged.evaluations.items()
    ]
    if losses:
        yield chart("Loss", losses, written=_short)
    of_sources = [
        Curve(label, points) for label, one in logged.sources.items() if (points := one.get("loss"))
    ]
    if of_sources:
        yield chart("Loss by source", of_sources, written=_short)
    for name, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate")):
        if curves := [Curve(title.lower(), points) for _, points in _one(logged, name)]:
            yield chart(title, curves, written=_short)
    for name, points in logged.custom.items():
        yield chart(name, [Curve(name, points)], written=_short)
    if curves := [Curve(name, points) for name, points in logged.experts.items()]:
        note = ": tokens of the most and the least used expert of any layer"
        yield chart("Load of experts", curves, unit="equal shares", note=note, written=_short)
    if curves := [Curve("tokens/s", points) for _, points in _one(logged, "tokens_per_second")]:
        yield chart(
            "Speed", curves, unit="tokens/s", written=lambda value: times.tokens_per_second(value).number
        )
    if curves := [Curve("memory", _in_gib(points)) for _, points in _one(logged, "memory_bytes")]:
        note = f": the most that any rank held so far, {logged.memory_kind}"
        yield chart(
            "Memory", curves, unit="GiB", note=note, written=lambda value: _bytes(value * _GIB, logged)
        )


def _by_rank(logged: RunRecord) -> Html:
    if not logged.rank_memory:
        text = "The run kept no logs by rank, so the memory of single ranks is not known: see "
        return paragraph(text, element("code", "logging { per_rank = true }"), ".", kind="note")
    most = sorted(logged.rank_memory, key=lambda rank: -logged.rank_memory[rank])[:_MAX_RANKS]
    sizes = [(rank, logged.rank_memory[rank]) for rank in sorted(most)]
    drawn = [Bar(f"rank {rank}", _bytes(size, logged), (size,)) for rank, size in sizes]
    left_out = len(logged.rank_memory) - len(drawn)
    others = f"; the {plural(left_out, 'rank')} with less omitted" if left_out else ""
    return element("figure", bars(drawn, caption=f"Peak memory by rank, {logged.memory_kind}{others}"))


def _one(logged: RunRecord, name: str) -> Iterator[tuple[str, Points]]:
    if name in logged.logged:
        yield name, logged.logged[name]


def _in_gib(points: Points) -> Points:
    return tuple((step, value / _GIB) for step, value in points)


def _bytes(value: float, logged: RunRecord) -> str:
    return times.measured_memory(round(value), kind=logged.memory_kind).text


def _written(name: str, value: float, logged: RunRecord) -> str:
    if name == "memory_bytes":
        return _bytes(value, logged)
    return times.tokens_per_second(value).number if name == "tokens_per_second" else _short(value)


def _short(value: float) -> str:
    return f"{value:.4g}"
