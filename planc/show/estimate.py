"""An estimate as text and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from planc.devices.hardware import FITS, RISKY, Device
from planc.estimate.estimate import estimated_facts
from planc.estimate.result import Amount, AtInterval, Collective, Estimate
from planc.figures import needs
from planc.figures import plan as of_plan
from planc.figures.figure import Figure
from planc.plan.scalars import listed
from planc.record import record
from planc.show.attention import attention_data, attention_text
from planc.show.times import Imbalance, Times, imbalance_data, imbalance_text, times_data, times_text
from planc.tables import format_bytes, plural, render_table
from planc.vocab import GroupDim


@record
class Traffic:
    """A rank's traffic in a step over the same mesh dims, by one kind of collective, for one cause."""

    over: str
    kind: str
    cause: str
    group_size: int
    count: Figure
    sent: Figure


def estimate_text(
    estimated: Estimate,
    *,
    device: Device | None = None,
    times: Times | None = None,
    imbalance: Imbalance | None = None,
) -> str:
    """The convention, memory by part, communication by mesh dim, work, and time if a device is known."""
    sections = [
        convention_text(estimated),
        memory_text(estimated, device=device),
        collectives_text(estimated),
    ]
    if estimated.ranks:
        sections.insert(1, ranks_text(estimated))
    if attention := attention_text(estimated):
        sections.append(attention)
    sections.append(f"WORK PER STEP\n{render_table([*work_rows(estimated)], indent='  ')}")
    if times is not None:
        sections.append(times_text(times))
    if imbalance is not None:
        sections.append(imbalance_text(imbalance, equal=estimated, equal_times=times))
    return "\n".join(sections)


def convention_text(estimated: Estimate) -> str:
    """The caveats of every number."""
    return "".join(f"{line}\n" for line in estimated.convention)


def ranks_text(estimated: Estimate) -> str:
    """A row for each pp rank."""
    header = ("pp rank", "stages", "in flight", "parameters", "peak", "sent")
    rows = [_rank_row(rank) for rank in estimated.ranks]
    table = render_table(rows, header=header, right=(0, 2, 3, 4, 5), indent="  ")
    return f"PIPELINE\n{table}"


def _rank_row(estimated: Estimate) -> tuple[str, ...]:
    place = estimated.place
    assert place is not None, "it is of a pipeline"
    figures = needs.parameters_per_rank(estimated), needs.peak_memory(estimated), needs.sent_bytes(estimated)
    stages = ", ".join(map(str, place.stages))
    numbers = (of_plan.of_pp_rank(place.pp_rank, figure).number for figure in figures)
    return str(place.pp_rank), stages, str(place.in_flight), *numbers


def memory_text(estimated: Estimate, *, device: Device | None = None) -> str:
    """Memory by part, the peak, its phase and, for a device, whether it fits."""
    text = f"MEMORY {_whose(estimated)}, at the peak, in {needs.peak_phase(estimated).text}\n"
    text += render_table([*peak_rows(estimated)], right=(1,), indent="  ")
    if elsewhere := [*elsewhere_rows(estimated)]:
        text += "  not in the peak (other phases, or host memory), each at its own maximum:\n"
        text += render_table(elsewhere, right=(1,), indent="  ")
    if estimated.memory.host_bytes:
        text += (
            f"  in host memory, in addition to the process: {needs.host_memory(estimated).text} per rank\n"
        )
    if (saved := estimated.checkpoint) is not None and saved.left_out_bytes:
        text += (
            f"  a checkpoint has {needs.checkpoint_size(saved).text}, and leaves "
            f"{needs.left_out_bytes(saved).text} of frozen parameters to the model's files\n"
        )
    if (saved := estimated.checkpoint) is not None and saved.num_best:
        best = plural(saved.num_best, "best one")
        text += f"  up to {needs.checkpoints_on_disk(saved).text} of checkpoints on disk, with {best}\n"
    if estimated.stored_sequence_bytes:
        stored = needs.stored_teacher(estimated).text
        text += f"  the teacher's log-probabilities have {stored} on disk for each sequence of the data\n"
    text += "".join(f"  {line}\n" for line in caveats(estimated))
    return text if device is None else f"{text}  on {device.name}: {verdict(estimated, device)}\n"


def _whose(estimated: Estimate) -> str:
    return estimated.whose.strip().upper() or "PER RANK"


def caveats(estimated: Estimate) -> Iterator[str]:
    """The parts of the plan that the memory estimate does not model."""
    if "compile" in estimated.not_modeled:
        yield "compile is not modeled: compiled modules keep other tensors, and their peak is often lower"
    if any(name.startswith("own code") for name in estimated.not_modeled):
        yield "parts of layers were not measured, so the peak is higher: `planc check --deep` measures it"
    if estimated.place is not None:
        yield "gaps between several micro-batches are not modeled: `planc check --deep` measures them"


def peak_rows(estimated: Estimate) -> Iterator[tuple[str, ...]]:
    """The parts of the peak, then the peak: name, bytes, whether they are exact, and the formula."""
    for name, _ in estimated.memory.peak_parts:
        explained = estimated.memory.explained(name)
        yield name, needs.peak_part(estimated, name).text, _size(explained), explained.formula
    peak = estimated.memory.peak
    yield peak.name, needs.peak_memory(estimated).text, _size(peak), peak.formula


def elsewhere_rows(estimated: Estimate) -> Iterator[tuple[str, ...]]:
    """The parts that are larger at another time than at the peak."""
    at_peak = dict(estimated.memory.peak_parts)
    for part in estimated.memory.parts:
        if part.num_bytes and at_peak.get(part.name) != part.num_bytes:
            yield part.name, needs.own_most(estimated, part.name).text, _size(part), part.formula


def verdict(estimated: Estimate, device: Device) -> str:
    """Whether the peak fits a device, and its share of the device's memory."""
    share = estimated.memory.peak.num_bytes / device.memory_bytes
    word = "fits" if share <= FITS else "may run out" if share <= RISKY else "does not fit"
    room = f"{100 * share:.0f} % of {format_bytes(device.memory_bytes)}"
    return f"{word}: {room}, and up to {100 * FITS:.0f} % counts as fitting"


def collectives_text(estimated: Estimate) -> str:
    """The bytes that a rank sends in a step, by mesh dim, kind and cause."""
    text = f"COMMUNICATION PER STEP, {_whose(estimated.of_most(Estimate.sent_bytes))}\n"
    rarely = "".join(f"  and {at_interval_text(interval)}\n" for interval in estimated.at_intervals)
    if not estimated.collectives:
        return f"{text}  none\n{rarely}"
    sent, number = needs.sent_bytes(estimated), needs.num_collectives(estimated)
    table = render_table([*map(traffic_row, traffic(estimated))], right=(2, 4), indent="  ")
    return f"{text}{table}  {sent.text} in total, in {number.text}\n{rarely}"


_PURPOSES = {"log": "for the log", "replicas.compare": "to compare replicas"}


def at_interval_text(one: AtInterval) -> str:
    """Collectives of a rank when an op is due, with their number and cause."""
    every = "step" if one.every_steps == 1 else needs.interval_steps(one).text
    return f"{needs.interval_bytes(one).text} every {every}, {_PURPOSES[one.op]}"


def _size(amount: Amount) -> str:
    return "exact" if amount.is_exact else "estimated"


def traffic(estimated: Estimate) -> Iterator[Traffic]:
    """The groups of a step's collectives of any size, including single numbers."""
    groups: dict[tuple[tuple[GroupDim, ...], str, str], list[Collective]] = {}
    for collective in estimated.collectives:
        groups.setdefault((collective.over, collective.kind, collective.cause), []).append(collective)
    for (over, kind, cause), members in groups.items():
        count = needs.collectives_by(members, over=over, kind=kind, cause=cause)
        sent = needs.sent_by(members, over=over, kind=kind, cause=cause)
        yield Traffic(", ".join(over), kind, cause, members[0].group_size, count, sent)


def traffic_row(one: Traffic) -> tuple[str, ...]:
    """Mesh dims, kind, number, group, bytes and cause."""
    ranks = plural(one.group_size, "rank")
    return one.over, one.kind, one.count.number, f"over {ranks}", one.sent.text, one.cause


def work_rows(estimated: Estimate) -> Iterator[tuple[str, str, str]]:
    """FLOPs of the model per token, of a step, and of one rank."""
    work = estimated.flops
    weights = "6 x matmul weights, less for frozen ones," if work.has_frozen else "6 x matmul weights"
    formula = f"{weights} + 6 x heads x (d_qk + d_v) x sequence; no causal halving"
    if work.counted_whole:
        formula += f"; every weight of {listed(work.counted_whole, last='and')} counts"
    yield "model", f"{needs.flops_per_token(estimated).text} per token", formula
    yield (
        "step",
        needs.flops_per_step(estimated).text,
        f"for all ranks, {needs.tokens_per_step(estimated).text}",
    )
    again = work.executed_per_token / work.per_token if work.per_token else 1.0
    executed = needs.flops_per_rank(estimated).text
    yield "rank", executed, f"executed, {again:.3f} x the model's: recomputation"


def memory_data(estimated: Estimate) -> dict[str, Any]:
    """Every part of memory, and the peak with its parts."""
    made_of = [{"name": name, "num_bytes": size} for name, size in estimated.memory.peak_parts]
    return {
        "parts": [asdict(part) for part in estimated.memory.parts],
        "peak": {**asdict(estimated.memory.peak), "phase": estimated.memory.peak_phase, "parts": made_of},
        "phases": dict(estimated.memory.phases),
        "host_bytes": estimated.memory.host_bytes,
    }


def collectives_data(estimated: Estimate) -> list[dict[str, Any]]:
    """Every collective of a step, without sums."""
    return _listed(estimated.collectives)


def _listed(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    return [
        {**asdict(collective), "over": list(collective.over), "sent_bytes": collective.sent_bytes}
        for collective in collectives
    ]


def _rank_data(estimated: Estimate) -> dict[str, Any]:
    assert estimated.place is not None, "it is of a pipeline"
    return {
        **asdict(estimated.place),
        "num_parameters": estimated.num_local_parameters,
        "memory": memory_data(estimated),
        "collectives": collectives_data(estimated),
    }


def estimate_data(
    estimated: Estimate,
    *,
    device: Device | None = None,
    times: Times | None = None,
    imbalance: Imbalance | None = None,
) -> dict[str, Any]:
    """Everything, with sums only in the facts; `device` and `time` only if a device is known."""
    document: dict[str, Any] = {
        "convention": " ".join(estimated.convention),
        "not_modeled": list(estimated.not_modeled),
        "facts": dict(estimated_facts(estimated, device=device)),
        "memory": memory_data(estimated),
        "collectives": collectives_data(estimated),
        "at_intervals": [
            {
                "op": interval.op,
                "every_steps": interval.every_steps,
                "collectives": _listed(interval.collectives),
            }
            for interval in estimated.at_intervals
        ],
        "attention": attention_data(estimated),
        "flops": {
            **asdict(estimated.flops),
            "per_step": estimated.flops.per_step,
            "executed_per_rank": estimated.flops.executed_per_rank,
        },
    }
    if estimated.ranks:
        document["ranks"] = [_rank_data(rank) for rank in estimated.ranks]
    if (saved := estimated.checkpoint) is not None and (saved.left_out_bytes or saved.num_best):
        document["checkpoint"] = asdict(saved)
    if estimated.stored_sequence_bytes:
        document["stored_sequence_bytes"] = estimated.stored_sequence_bytes
    if device is not None:
        document["device"] = asdict(device)
    if times is not None:
        document["time"] = times_data(times)
    if imbalance is not None:
        document["imbalance"] = imbalance_data(imbalance)
    return document
