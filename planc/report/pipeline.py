"""A pipeline as a picture: what each pp rank computes in a step, if stages take equal time."""

from __future__ import annotations

from collections.abc import Iterator

from planc.figures import plan as of_plan
from planc.graph.pipeline import Pipeline
from planc.pipelining.orders import Action, Direction
from planc.pipelining.simulate import Simulation
from planc.record import record
from planc.report.html import Html, details, element, figure, markup, paragraph, scrolling, table
from planc.show.pipeline import STAGE_COLUMNS, stage_rows

_SLOT, _ROW, _MARGIN = 22, 22, 64
_MAX_ACTIONS = 3_000
"""The most that are drawn. Of a longer step the picture has the first."""
_MAX_NAMED = 600
"""The most with their micro batch's number inside."""
_KINDS = {
    Direction.FORWARD: ("forward", "forward"),
    Direction.BACKWARD: ("backward", "backward"),
    Direction.WEIGHTS: ("gradients of weights", "weights"),
}
"""The name and the class of each."""


@record
class _Drawn:
    rank: int
    action: Action
    start: float
    end: float


def pipeline_section(pipeline: Pipeline) -> Html:
    """The bubble, the picture of a step, and the stages as a table."""
    step = pipeline.equal_step()
    drawn, end = _actions(pipeline, step)
    shown = {one.action.direction for one in drawn}
    rest = "" if end == step.seconds else f"; the first {end:g} of {step.seconds:g} slots"
    caption = f"A row for each pp rank, time from left to right, numbers of micro batches{rest}"
    return markup(
        paragraph(
            f"{pipeline.num_stages} stages on {pipeline.num_ranks} pp ranks, "
            f"{pipeline.num_micro_batches} micro batches, bubble ",
            figure(of_plan.bubble(pipeline)),
        ),
        element(
            "figure",
            element("figcaption", caption),
            scrolling(_picture(pipeline, drawn, end), label=caption),
            paragraph(*(_legend(kind) for kind in _KINDS if kind in shown), kind="legend"),
            details("Stages", table(stage_rows(pipeline, step), header=STAGE_COLUMNS, caption="Stages")),
        ),
    )


def _actions(pipeline: Pipeline, step: Simulation) -> tuple[list[_Drawn], float]:
    """Return the actions to draw, and the slot at which the picture ends."""
    drawn = [
        _Drawn(rank, *timed)
        for rank, order in enumerate(pipeline.orders)
        for timed in zip(order, step.starts[rank], step.ends[rank], strict=True)
    ]
    drawn.sort(key=lambda one: one.end)
    if len(drawn) <= _MAX_ACTIONS:
        return drawn, step.seconds
    end = drawn[_MAX_ACTIONS - 1].end
    return [one for one in drawn if one.end <= end], end


def _picture(pipeline: Pipeline, drawn: list[_Drawn], end: float) -> Html:
    width, height = _MARGIN + _SLOT * end + 2, _ROW * pipeline.num_ranks + 2
    parts = [
        element("text", f"rank {rank}", x=0, y=_ROW * (rank + 0.7), class_="rank")
        for rank in range(pipeline.num_ranks)
    ]
    for one in drawn:
        parts.extend(_drawn(pipeline, one, is_named=len(drawn) <= _MAX_NAMED))
    box = f"0 -1 {width:g} {height:g}"
    return element(
        "svg", *parts, viewBox=box, width=width, height=height, class_="pipeline", aria_hidden="true"
    )


def _drawn(pipeline: Pipeline, drawn: _Drawn, *, is_named: bool) -> Iterator[Html]:
    name, kind = _KINDS[drawn.action.direction]
    left, top, width = _MARGIN + _SLOT * drawn.start, _ROW * drawn.rank, _SLOT * (drawn.end - drawn.start)
    number = str(drawn.action.micro_batch)
    stage = "" if pipeline.num_stages == pipeline.num_ranks else f" in stage {drawn.action.stage}"
    title = element("title", f"rank {drawn.rank}: {name} of micro batch {number}{stage}")
    box = element("rect", x=left, y=top, width=width - 1, height=_ROW - 2, class_=kind)
    yield element("g", title, box)
    if is_named:
        yield element("text", number, x=left + width / 2, y=top + 0.7 * _ROW, class_=f"of-{kind}")


def _legend(direction: Direction) -> Html:
    name, kind = _KINDS[direction]
    box = element("rect", x=1, y=1, width=14, height=14, class_=kind)
    drawn = element("svg", box, width=16, height=16, class_="pipeline", aria_hidden="true")
    return element("span", drawn, f" {name}")
