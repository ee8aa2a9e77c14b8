"""A plan's needs: memory by part, communication by cause, and a step's times, as bars."""

from __future__ import annotations

from collections.abc import Iterator

from planc.deep_check.check import Deep
from planc.deep_check.summary import rehearsed_rows
from planc.devices.hardware import Device
from planc.estimate.result import Estimate
from planc.figures import needs
from planc.figures.figure import num_bytes
from planc.graph.graph import Graph
from planc.report.charts import Bar, bars
from planc.report.html import Html, details, element, markup, paragraph, table
from planc.show import estimate
from planc.show.attention import attention_rows
from planc.show.times import Times, bound_parts, bound_rows, expected_parts, expected_rows, no_time


def memory_section(estimated: Estimate, *, device: Device | None) -> Html:
    """The parts of the peak, the peak itself, and whether it fits."""
    peak = needs.peak_memory(estimated)
    drawn = [_part(estimated, name) for name, _ in estimated.memory.peak_parts]
    drawn.append(Bar("peak", peak.text, (peak.count,), is_total=True))
    limit = device.memory_bytes if device else None
    words = [f"on {device.name}: {estimate.verdict(estimated, device)}"] if device else []
    rows = [*estimate.peak_rows(estimated), *estimate.elsewhere_rows(estimated)]
    header = ("part", "bytes", "", "formula")
    caption = f"Memory per rank at the peak, in {needs.peak_phase(estimated).text}{estimated.whose}"
    if device:
        caption += f"; the line is {device.name}'s memory"
    return markup(
        *map(paragraph, words),
        element("figure", bars(drawn, caption=caption, mark=limit)),
        *map(paragraph, estimate.caveats(estimated)),
        details(
            "How each part is computed, and parts outside of the peak",
            table(rows, header=header, caption="Memory"),
        ),
        paragraph(" ".join(estimated.convention), kind="note"),
    )


def _part(estimated: Estimate, name: str) -> Bar:
    part = needs.peak_part(estimated, name)
    return Bar(name, part.text, (part.count,))


def rehearsal_section(deep: Deep, *, graph: Graph) -> Html:
    """The memory of the measured rank over a step."""
    words = table([*rehearsed_rows(deep, graph=graph)], caption="Rehearsal, as planc check --deep")
    measured = deep.rehearsal.measured
    if measured is None:
        return words
    drawn: list[Bar] = []
    rows: list[tuple[str, ...]] = []
    for segment in measured.segments:
        text = num_bytes(f"rehearsed_segment.{segment.segment}", segment.num_bytes).text
        drawn.append(Bar(segment.segment, text, (segment.num_bytes,), is_total=segment is measured.peak))
        parts = sorted(segment.parts, key=lambda part: -part[1])
        rows.extend(
            (segment.segment, name, num_bytes(f"{segment.segment}.{name}", size).text) for name, size in parts
        )
    caption = "The most memory allocated at once in each part of a step, in their order"
    behind = table(rows, header=("part of the step", "memory", "bytes"), caption="Rehearsed memory")
    return markup(
        words, element("figure", bars(drawn, caption=caption)), details("By purpose, as a table", behind)
    )


def communication_section(estimated: Estimate) -> Html:
    """The bytes that a rank sends in a step, by mesh dims, kind and cause."""
    sent, number = needs.sent_bytes(estimated), needs.num_collectives(estimated)
    if not estimated.collectives:
        return paragraph("A step sends nothing.")
    drawn = [
        Bar(f"{one.over} {one.kind}, {one.cause}", one.sent.text, (one.sent.count,))
        for one in estimate.traffic(estimated)
    ]
    drawn.append(Bar("total", sent.text, (sent.count,), is_total=True))
    rows = [*map(estimate.traffic_row, estimate.traffic(estimated))]
    header = ("over", "collective", "number", "group", "sent", "cause")
    whose = estimated.of_most(Estimate.sent_bytes).whose
    rarely = [f"And {estimate.at_interval_text(interval)}." for interval in estimated.at_intervals]
    return markup(
        element("figure", bars(drawn, caption=f"Sent per rank and step, in {number.text}{whose}")),
        *map(paragraph, rarely),
        details("As a table", table(rows, header=header, caption="Communication per step, per rank")),
        details("Attention", table([*attention_rows(estimated)], caption="Attention")),
        details("Work per step", table([*estimate.work_rows(estimated)], caption="Work per step")),
    )


def times_section(times: Times) -> Html:
    """The expected time by part, and the bound: two figures, drawn to one scale."""
    step, expected, bound = times.step, times.expected, times.bound
    scale = max(expected.step_seconds if expected else 0.0, bound.step_seconds if bound else 0.0)
    parts = []
    if expected is None:
        parts.append(paragraph(f"The expected time is unknown: {no_time(step, times.device)}."))
    else:
        drawn = _bars(
            [*expected_parts(step, expected)], [*expected_rows(step, expected)], expected.step_seconds
        )
        caption = f"Expected time of a step, by {expected.source}"
        parts += _figure(drawn, [*expected_rows(step, expected)], caption=caption, scale=scale)
    if bound is not None:
        drawn = _bars([*bound_parts(step, bound)], [*bound_rows(step, bound)], bound.step_seconds)
        caption = f"A bound, from {times.device.name}'s peaks: no run takes less. It is not an expectation"
        parts += _figure(drawn, [*bound_rows(step, bound)], caption=caption, scale=scale)
    return markup(*parts)


def _bars(parts: list[tuple[str, float, str]], rows: list[tuple[str, str, str]], total: float) -> list[Bar]:
    """The rows of the text view, with bars for those of seconds."""
    seconds = {name: value for name, value, _ in parts} | {"step": total}
    return [
        Bar(name, text, (seconds[name],), is_total=name == "step")
        for name, text, _ in rows
        if name in seconds
    ]


def _figure(
    drawn: list[Bar], rows: list[tuple[str, str, str]], *, caption: str, scale: float
) -> Iterator[Html]:
    tokens = [f"{text}, {note}" for name, text, note in rows if name == "tokens"]
    yield element("figure", bars(drawn, caption=caption, scale=scale))
    yield from map(paragraph, tokens)
    yield details("Notes as a table", table([*rows], header=("part", "time", ""), caption=caption))
