"""A pipeline: its stages, and the step that its orders make, drawn with stages of equal time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from planc.figures import plan as of_plan
from planc.graph.pipeline import Pipeline
from planc.graph.text import summarise
from planc.pipelining.orders import Action, Direction, has_weights, rank_of
from planc.pipelining.simulate import Simulation
from planc.tables import render_table

MAX_CELLS = 80


def pipeline_text(pipeline: Pipeline) -> str:
    """The stages with their modules, then a row for each pp rank with a column for each slot.

    A step that is wider than MAX_CELLS is cut in the middle.
    """
    step = pipeline.equal_step()
    stages = render_table(stage_rows(pipeline, step), header=STAGE_COLUMNS, right=(0, 1, 2))
    bubble = of_plan.bubble(pipeline)
    text = f"{pipeline.num_stages} stages on {pipeline.num_ranks} pp ranks, "
    text += f"{pipeline.num_micro_batches} micro batches, bubble {bubble.text}"
    drawn = "\n".join(_drawn(pipeline, step))
    return f"{text}\n\n{stages}\n{_units(pipeline)}{_ties(pipeline)}{drawn}\n"


def _units(pipeline: Pipeline) -> str:
    """A table of FSDP's units, and an empty line; nothing without FSDP."""
    alike: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for unit in pipeline.units:
        alike.setdefault((unit.stage, len(pipeline.stays(unit))), []).append(unit.modules)
    rows = [(str(stage), str(times), _names(groups)) for (stage, times), groups in sorted(alike.items())]
    return f"{render_table(rows, header=UNIT_COLUMNS, right=(0, 1))}\n" if rows else ""


def _names(groups: Sequence[tuple[str, ...]]) -> str:
    """Units by their modules: those of several in brackets."""
    alone = summarise([group[0] for group in groups if len(group) == 1])
    together = (f"[{', '.join(summarise(group))}]" for group in groups if len(group) > 1)
    return ", ".join((*alone, *together))


def _ties(pipeline: Pipeline) -> str:
    """A line for each weight that two stages have, and an empty one."""
    last = pipeline.num_stages - 1
    lines = [
        f"{' = '.join(tie)}: in stages 0 and {last}, which sum its gradients once a step\n"
        for tie in pipeline.split.ties
    ]
    return "".join([*lines, "\n"]) if lines else ""


STAGE_COLUMNS = ("stage", "pp rank", "in flight", "modules")
UNIT_COLUMNS = ("stage", "gathered in a step", "FSDP units")


def stage_rows(pipeline: Pipeline, step: Simulation) -> list[tuple[str, ...]]:
    """A row of STAGE_COLUMNS for each stage."""
    return [
        (
            str(stage),
            str(rank_of(stage, num_ranks=pipeline.num_ranks)),
            str(step.in_flight[stage]),
            ", ".join(summarise(modules)),
        )
        for stage, modules in enumerate(pipeline.split.stages)
    ]


def _drawn(pipeline: Pipeline, step: Simulation) -> Iterator[str]:
    """A line for each rank, and the key."""
    names = [[_name(pipeline, action) for action in order] for order in pipeline.orders]
    are_apart = has_weights(pipeline.orders)
    width = max(len(name) for own in names for name in own) + (3 if are_apart else 1)
    num_slots = round(step.seconds)
    labels = [f"rank {rank}" for rank in range(pipeline.num_ranks)]
    margin = max(map(len, labels)) + 2
    room = (MAX_CELLS - margin) // width
    # The cut takes the room of two slots.
    kept = num_slots if num_slots <= room else room - 2
    for rank, label in enumerate(labels):
        slots = ["."] * num_slots
        timed = zip(pipeline.orders[rank], names[rank], step.starts[rank], step.ends[rank], strict=True)
        for action, name, start, end in timed:
            slots[round(start) : round(end)] = _cells(action, name, width, number=round(end - start))
        if kept < num_slots:
            _cut(slots, kept)
        yield f"{label.ljust(margin)}{''.join(slot.ljust(width) for slot in slots)}".rstrip()
    yield ""
    if kept < num_slots:
        yield f"{num_slots - kept} of {num_slots} slots are left out in the middle"
    name = names[0][0]
    numbers = "micro batches" if pipeline.num_stages == pipeline.num_ranks else "stage.micro batch"
    backward = f"[{name}] a backward" if are_apart else f"[{name}] a backward of two slots"
    backward += f", ({name}) its gradients of weights" if are_apart else ""
    yield f"{name} is a forward, {backward}, . an idle slot; numbers are {numbers}"


def _cut(slots: list[str], kept: int) -> None:
    """Leave `kept` slots, half of them at either end, and what marks the cut; a halved backward is blank."""
    left, right = kept // 2, len(slots) - (kept - kept // 2)
    for halved, at in ((left - 1, left - 1), (right - 1, right)):
        if slots[halved].startswith("["):
            slots[at] = ""
    slots[left:right] = ["...", ""]


def _name(pipeline: Pipeline, action: Action) -> str:
    """The micro batch, and its stage where a rank has several."""
    if pipeline.num_stages == pipeline.num_ranks:
        return str(action.micro_batch)
    return f"{action.stage}.{action.micro_batch}"


def _cells(action: Action, name: str, width: int, *, number: int) -> Sequence[str]:
    """An action's slots, one or two."""
    match action.direction:
        case Direction.FORWARD:
            drawn = name
        case Direction.BACKWARD:
            drawn = f"[{name}]"
        case Direction.WEIGHTS:
            drawn = f"({name})"
    return [drawn[:width], drawn[width:]][:number]


def pipeline_data(pipeline: Pipeline) -> dict[str, Any]:
    """Stages, units and ranks as plain data.

    A unit has pairs of the actions in which it is gathered and freed, a rank the slots in which its actions
    start.
    """
    step = pipeline.equal_step()
    return {
        "num_micro_batches": pipeline.num_micro_batches,
        "bubble": of_plan.bubble(pipeline).value,
        "message_shape": list(pipeline.split.shape),
        "message_dtype": str(pipeline.split.dtype),
        "ties": [list(tie) for tie in pipeline.split.ties],
        "stages": [
            {
                "stage": stage,
                "pp_rank": rank_of(stage, num_ranks=pipeline.num_ranks),
                "modules": list(modules),
                "in_flight": step.in_flight[stage],
            }
            for stage, modules in enumerate(pipeline.split.stages)
        ],
        "units": [
            {
                "modules": list(unit.modules),
                "stage": unit.stage,
                "gathered": [[str(stay.first), str(stay.last)] for stay in pipeline.stays(unit)],
            }
            for unit in pipeline.units
        ],
        "ranks": [
            {
                "pp_rank": rank,
                "order": list(map(str, order)),
                "start_slots": [round(start) for start in step.starts[rank]],
                "in_flight": step.rank_in_flight[rank],
                "bubble": step.bubble[rank],
            }
            for rank, order in enumerate(pipeline.orders)
        ],
    }
