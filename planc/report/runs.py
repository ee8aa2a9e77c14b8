"""Several runs on one page: what differs between their plans, and their curves over each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from planc.diff.among import among
from planc.diff.side import Side
from planc.figures import plan as of_plan
from planc.figures import times
from planc.record import record
from planc.report.charts import Curve, chart
from planc.report.html import Html, markup, paragraph, table
from planc.report.page import Section, page
from planc.report.run import Points, RunRecord
from planc.tables import plural

MAX_DRAWN = 24
"""The runs that have a color and a dash of their own."""


@record
class Listed:
    """A run, and its plan."""

    name: str
    side: Side
    logged: RunRecord

    def last(self, name: str) -> float | None:
        """The last logged value."""
        points = self.logged.logged.get(name, ())
        return points[-1][1] if points else None

    @property
    def step(self) -> int:
        step = self.logged.status.get("step")
        points = self.logged.logged.get("loss", ())
        return step if isinstance(step, int) else points[-1][0] if points else 0

    @property
    def origin(self) -> str:
        """The checkpoint of another run that it started from; empty if it started on its own."""
        origin = self.logged.status.get("branched_from")
        return str(origin.get("path", "")) if isinstance(origin, Mapping) else ""

    @property
    def best(self) -> str:
        """`step-4 (held 3.9010)`: the best checkpoint by each evaluation that judges; empty without one."""
        best = self.logged.best.items()
        return ", ".join(f"step-{step} ({name} {loss:.4f})" for name, (step, loss) in best)

    @property
    def state(self) -> str:
        """The state of status.json, with the exit code of a failure."""
        state, code = self.logged.status.get("state"), self.logged.status.get("exit_code")
        if self.logged.status.get("early_stop"):
            return f"{state} (early)"
        return f"failed ({code})" if state == "failed" else str(state or "unknown")


def runs_page(runs: Sequence[Listed], *, title: str) -> str:
    """The page of several runs."""
    drawn = _drawn(runs)
    left_out = len(runs) - len(drawn)
    note = f"Curves of the {plural(len(drawn), 'run')} with the lowest last loss; {left_out} others omitted."
    notes = paragraph(note, kind="note") if left_out else Html("")
    sections = [
        Section("runs", "Runs", _table(runs)),
        Section("differences", "What differs between their plans", _differences(runs)),
        Section("steps", "By step", markup(notes, *_charts(drawn))),
        Section("tokens", "By tokens", markup(notes, *_by_tokens(drawn))),
    ]
    return page(title, heading=paragraph(plural(len(runs), "run")), sections=sections)


def _drawn(runs: Sequence[Listed]) -> Sequence[Listed]:
    if len(runs) <= MAX_DRAWN:
        return runs
    kept = sorted(runs, key=lambda run: _or_worst(run.last("loss")))[:MAX_DRAWN]
    return [run for run in runs if run in kept]


def _or_worst(loss: float | None) -> float:
    return loss if loss is not None and loss == loss else float("inf")


def _table(runs: Sequence[Listed]) -> Html:
    labels, has_best = _evaluations(runs), any(run.best for run in runs)
    rows = []
    for run in runs:
        tokens_per_second = run.last("tokens_per_second")
        rows.append(
            (
                run.name,
                run.state,
                f"{run.step:_} of {of_plan.num_steps(run.side.graph).number}",
                _short(run.last("loss")),
                *(_short(_last(run.logged.evaluations.get(label, ()))) for label in labels),
                "-" if tokens_per_second is None else times.tokens_per_second(tokens_per_second).number,
                *((run.best or "-",) if has_best else ()),
            )
        )
    evaluated = (f"evaluation {label}" for label in labels)
    best = ("best checkpoint",) if has_best else ()
    header = ("run", "state", "step", "loss", *evaluated, "tokens/s", *best)
    return table(rows, header=header, caption="Runs, with their last logged values")


def _differences(runs: Sequence[Listed]) -> Html:
    """The settings in which plans differ, as rows: of many settings and few runs a page shows more so."""
    differing = among([run.side for run in runs])
    if not differing:
        return paragraph("Nothing: they run the same plan.")
    rows = [(name, *values) for name, values in differing.items()]
    caption = plural(len(rows), "difference")
    return table(rows, header=("setting", *(run.name for run in runs)), caption=caption)


def _evaluations(runs: Sequence[Listed]) -> list[str]:
    return [*dict.fromkeys(label for run in runs for label in run.logged.evaluations)]


def _charts(runs: Sequence[Listed]) -> Iterator[Html]:
    yield from _losses(runs, by="step")
    for name, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate")):
        yield from _chart(title, [(run, run.logged.logged.get(name, ())) for run in runs])
    for name in dict.fromkeys(name for run in runs for name in run.logged.custom):
        yield from _chart(name, [(run, run.logged.custom.get(name, ())) for run in runs])
    rates = [(run, run.logged.logged.get("tokens_per_second", ())) for run in runs]
    yield from _chart("Speed", rates, unit="tokens/s")


def _losses(runs: Sequence[Listed], *, by: str) -> Iterator[Html]:
    yield from _chart("Loss", [(run, run.logged.logged.get("loss", ())) for run in runs], by=by)
    for label in _evaluations(runs):
        losses = [(run, run.logged.evaluations.get(label, ())) for run in runs]
        yield from _chart(f"Evaluation {label}", losses, by=by)


def _by_tokens(runs: Sequence[Listed]) -> Iterator[Html]:
    """The losses over the tokens that were trained on by then, as the plan of each run counts them."""
    text = "Tokens are steps, times the tokens per step of the plan that ran last."
    yield paragraph(text, kind="note")
    yield from _losses(runs, by="tokens")


def _chart(
    title: str, logged: Sequence[tuple[Listed, Points]], *, unit: str = "", by: str = "step"
) -> Iterator[Html]:
    """The curves of all runs that logged it. A run keeps its color and its dash on every chart."""
    if not any(points for _, points in logged):
        return
    scales = (of_plan.tokens_per_step(run.side.graph).count if by == "tokens" else 1 for run, _ in logged)
    curves = [
        Curve(run.name, tuple((step * scale, value) for step, value in points), is_line=len(points) != 1)
        for (run, points), scale in zip(logged, scales, strict=True)
    ]
    without = [run.name for run, points in logged if not points]
    note = f"; without {', '.join(without)}" if without else ""
    yield chart(title, curves, unit=unit, note=note, written=partial(_short), by=by)


def _last(points: Points) -> float | None:
    return points[-1][1] if points else None


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
