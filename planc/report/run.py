"""A run's curves: loss, gradient norm, speed and memory."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diff.side import Side
from planc.figures import plan as of_plan
from planc.figures import speed
from planc.report.bars import Bar, bars
from planc.report.charts import Curve, chart
from planc.report.html import Html, element, markup, paragraph, table
from planc.report.run_record import Points, RunRecord
from planc.runtime.files.run_files import METRICS_NAME
from planc.tables import plural

_GIB = 2**30
_MAX_RANKS = 64
"""The most ranks whose memory is drawn."""


def status_section(logged: RunRecord, side: Side) -> Html:
    """How the run ended, or how far it is, with its last logged values."""
    status = {name: value for name, value in logged.status.items() if value not in (None, [], "")}
    rows = [(name.replace("_", " "), str(value)) for name, value in status.items() if name != "plan_hash"]
    num_steps = of_plan.num_steps(side.graph).number
    for name, points in logged.logged.items():
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
    if curves := [Curve("tokens/s", points) for _, points in _one(logged, "tokens_per_second")]:
        yield chart(
            "Speed", curves, unit="tokens/s", written=lambda value: speed.tokens_per_second(value).number
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
    return speed.measured_memory(round(value), kind=logged.memory_kind).text


def _written(name: str, value: float, logged: RunRecord) -> str:
    if name == "memory_bytes":
        return _bytes(value, logged)
    return speed.tokens_per_second(value).number if name == "tokens_per_second" else _short(value)


def _short(value: float) -> str:
    return f"{value:.4g}"
