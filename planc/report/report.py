"""The pages: of a plan, of a run, and of differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.deep_check.check import Deep
from planc.diff.difference import PlanDiff
from planc.diff.review import COLUMNS, Reviewed, is_listed, listed_findings, summary
from planc.diff.side import Side
from planc.estimate.step_work import step_work
from planc.figures import plan as of_plan
from planc.graph.graph import plan_hash
from planc.graph.pipeline import pipeline_of
from planc.record import record
from planc.report.difference import difference_section, finding_list
from planc.report.html import Html, figure, paragraph, table
from planc.report.layers import layers_section
from planc.report.mesh import mesh_picture
from planc.report.needs import communication_section, memory_section, rehearsal_section, times_section
from planc.report.page import Section, page
from planc.report.pipeline import pipeline_section
from planc.report.run import RunRecord, curves_section, status_section
from planc.report.schedule import schedule_section
from planc.show.overview import overview
from planc.show.times import times_of

_NOT_REHEARSED = "Not rehearsed: run planc check --deep, or this report with --deep."
_NOT_READ = "Not read: run this report with --data, or planc data show."
_NO_DEVICE = "Unknown: the plan names no device. Set hardware.gpu, or pass --gpu."
_NO_DEVICE_COMPILED = "Unknown: a compiled plan names no device. See the report of its plan."
_NO_MODEL = "Layout, memory and communication are not shown: the model is not here."


@record
class Compared:
    """A difference, and its two sides."""

    found: PlanDiff
    old: Side
    new: Side


def plan_page(
    side: Side, *, deep: Deep | None = None, data: Html | None = None, against: Compared | None = None
) -> str:
    """The page of a plan. `data` is what was seen of its data."""
    sections = [
        *_plan_sections(side, deep=deep),
        Section("data", "Data", paragraph(_NOT_READ) if data is None else data),
    ]
    return page(side.graph.name, heading=_heading(side), sections=[*sections, *_differences(against)])


def run_page(
    side: Side, logged: RunRecord, *, deep: Deep | None = None, against: Compared | None = None
) -> str:
    """The page of a run, with its plan below."""
    sections = [
        Section("status", "Status", status_section(logged, side)),
        Section("training", "Training", curves_section(logged)),
        *_plan_sections(side, deep=deep),
    ]
    title = f"{side.graph.name}, a run"
    return page(title, heading=_heading(side), sections=[*sections, *_differences(against)])


def difference_page(difference: PlanDiff, old: Side, new: Side) -> str:
    """The page of one difference."""
    section = Section("difference", "What changes", difference_section(difference, old, new))
    return page(difference.new.name, heading=Html(""), sections=[section])


def review_page(reviewed: Sequence[Reviewed], *, revision: str) -> str:
    """The page of a branch's changes: a table of all plans, then each semantic difference."""
    sections = []
    for index, plan in enumerate(reviewed):
        if plan.found is not None and plan.sides is not None and is_listed(plan):
            sections.append(Section(f"plan-{index}", plan.path, difference_section(plan.found, *plan.sides)))
        elif plan.found is None and (findings := listed_findings(plan)):
            sections.append(Section(f"plan-{index}", f"{plan.path} {plan.what}", finding_list(findings)))
    rows = [summary(plan) for plan in reviewed]
    heading = table([*rows], header=COLUMNS, caption="Plans") if rows else paragraph("No plan changed.")
    return page(f"Plans compared with {revision}", heading=heading, sections=sections)


def _differences(against: Compared | None) -> list[Section]:
    if against is None:
        return []
    title = f"Compared with {against.found.old.name}"
    return [Section("difference", title, difference_section(against.found, against.old, against.new))]


def _heading(side: Side) -> Html:
    graph = side.graph
    note = f", {side.note}" if side.note else ""
    return paragraph(
        *(f"{side.name}{note}, plan_hash {plan_hash(graph)[:12]}, ", figure(of_plan.world_size(graph)), ", "),
        *(figure(of_plan.tokens_per_step(graph)), " per step, ", figure(of_plan.num_steps(graph))),
    )


def _plan_sections(side: Side, *, deep: Deep | None) -> Iterator[Section]:
    """The sections of a plan; an artifact without its model has only what its graph holds."""
    estimated = side.estimate
    if side.bound is not None and estimated is not None:
        rows = overview(side.bound, side.graph, estimated)
        yield Section("overview", "Overview", table([*rows], caption="The plan"))
    hardware = side.plan.hardware if side.plan else None
    device = hardware.gpu if hardware else None
    node = (side.plan.mesh.devices_per_node if side.plan else None) or (
        device.devices_per_node if device else None
    )
    sizes = [size for _, size in side.graph.mesh]
    yield Section("mesh", "Mesh", mesh_picture(sizes, devices_per_node=node))
    pipeline = pipeline_of(side.graph)
    if pipeline is not None:
        yield Section("pipeline", "Pipeline", pipeline_section(pipeline))
    if estimated is None or side.inventory is None:
        yield Section("layers", "Layers", paragraph(_NO_MODEL))
    else:
        yield Section("layers", "Layers", layers_section(side, estimated))
        yield Section("memory", "Memory", memory_section(estimated, device=device))
        measured = paragraph(_NOT_REHEARSED) if deep is None else rehearsal_section(deep, graph=side.graph)
        yield Section("rehearsal", "Memory over a step", measured)
        yield Section("communication", "Communication", communication_section(estimated))
        if device is None:
            times = paragraph(_NO_DEVICE if side.plan else _NO_DEVICE_COMPILED)
        else:
            step = step_work(side.graph, side.inventory, estimated)
            times = times_section(times_of(step, device, devices_per_node=node))
        yield Section("time", "Time of a step", times)
    yield Section("schedule", "Schedule", schedule_section(side))
