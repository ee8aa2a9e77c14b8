"""The events of a run's steps: learning rates, saves and evaluations."""

from __future__ import annotations

from planc.diff.side import Side
from planc.figures import plan as of_plan
from planc.graph import ops
from planc.graph.graph import UNKNOWN_STEPS
from planc.report.charts import Curve, chart
from planc.report.html import Html, markup, table
from planc.runtime.schedule import learning_rate_factor
from planc.tables import every_step, interval

_NUM_POINTS = 400
_MAX_MARKS = 40
"""The most marks of saves or evaluations that a picture can show."""


def schedule_section(side: Side) -> Html:
    """The learning rate of each parameter group, and when a run saves and evaluates."""
    schedule, optimizer = side.op(ops.BuildSchedule), side.op(ops.BuildOptimizer)
    assert schedule is not None and optimizer is not None, "every graph trains"
    if side.graph.num_steps == UNKNOWN_STEPS:
        rows: list[tuple[str, ...]] = [("train", "steps known after `planc data prepare`")]
        return markup(table(rows, caption="Schedule"))
    saves, evaluations = side.op(ops.SaveCheckpoint), side.ops(ops.Evaluate)
    if schedule.kind == ops.OWN_SCHEDULE:
        # Its rates are known only to code that a report doesn't run.
        return markup(table([*_rows(side, schedule, saves, evaluations)], caption="Schedule"))
    rates = tuple(dict.fromkeys(group.lr for group in optimizer.groups))
    marked: dict[str, list[int]] = {}
    if saves is not None:
        marked["save"] = _due(saves.every_steps, schedule.num_steps, at_end=saves.at_end)
    for op in evaluations:
        marked[f"evaluate {op.label}"] = _due(op.every_steps, schedule.num_steps, at_end=True)
    shown = {name: steps for name, steps in marked.items() if 0 < len(steps) <= _MAX_MARKS}
    steps = sorted({*_spread(schedule), *(step for steps in shown.values() for step in steps)})
    factors = {step: learning_rate_factor(schedule, step) for step in steps}
    names = ["learning rate"] if len(rates) == 1 else [f"learning rate, peak {rate:g}" for rate in rates]
    curves = [
        Curve(name, tuple((step, rate * factors[step]) for step in steps))
        for name, rate in zip(names, rates, strict=True)
    ]
    curves += [
        Curve(name, tuple((step, rates[0] * factors[step]) for step in due), is_line=False)
        for name, due in shown.items()
    ]
    return markup(
        table([*_rows(side, schedule, saves, evaluations)], caption="Schedule"),
        chart("Learning rate", curves, written=lambda value: f"{value:.4g}"),
    )


def _rows(
    side: Side,
    schedule: ops.BuildSchedule,
    saves: ops.SaveCheckpoint | None,
    evaluations: tuple[ops.Evaluate, ...],
) -> list[tuple[str, ...]]:
    steps, tokens = of_plan.num_steps(side.graph), of_plan.total_tokens(side.graph)
    decay = f", decay over the last {schedule.decay_steps:_} steps" if schedule.decay_steps else ""
    own = side.op(ops.LoadSchedule)
    shape = str(own.extension) if own else f"{schedule.kind}, warmup {schedule.warmup_steps:_} steps{decay}"
    rows = [
        ("train", f"{steps.text}, {tokens.text}"),
        ("learning rate", shape),
    ]
    if saves is None:
        rows.append(("save", "never"))
    else:
        every = interval(steps=saves.every_steps, seconds=saves.every_seconds)
        when = [*([every] if every else []), *(["after the last step"] if saves.at_end else [])]
        rows.append(("save", f"{' and '.join(when) or 'never'}, keeping the last {saves.keep_last}"))
    rows += [(f"evaluate {op.label}", f"{every_step(op.every_steps)}, and the last") for op in evaluations]
    rows += [(f"by {op.evaluation}", op.policy) for op in side.ops(ops.JudgeEvaluations)]
    readers = side.ops(ops.LoadReaders)
    rows += [("metric", str(own)) for op in readers for own in op.metrics]
    rows += [("callback", str(own)) for op in readers for own in op.callbacks]
    rows += [("export", f"at the {op.when}, in {op.dtype}") for op in side.ops(ops.ExportHf)]
    rows += [("export of adapters", f"at the {op.when}") for op in side.ops(ops.ExportAdapter)]
    rows += [("push", f"{op.export} to {op.target}") for op in side.ops(ops.PushExport)]
    return [*rows]


def _due(every: int | None, num_steps: int, *, at_end: bool) -> list[int]:
    due = [*range(every, num_steps + 1, every)] if every else []
    return sorted({*due, num_steps}) if at_end else due


def _spread(schedule: ops.BuildSchedule) -> set[int]:
    """Steps at even distances, and those where the curve bends."""
    last = schedule.num_steps
    spread = {1 + index * (last - 1) // (_NUM_POINTS - 1) for index in range(_NUM_POINTS)}
    bends = {schedule.warmup_steps, last - (schedule.decay_steps or 0), last}
    return {step for step in spread | bends if 1 <= step <= last}
