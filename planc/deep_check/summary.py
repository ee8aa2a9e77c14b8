"""The lines that `planc check --deep` prints about a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator

from planc.deep_check.check import Deep
from planc.figures.figure import num_bytes
from planc.figures.needs import counted_collectives
from planc.graph.graph import Graph
from planc.graph.ops import FullyShard
from planc.tables import Row
from planc.vocab import MeshDim

_MAX_PARTS = 3


def rehearsed_rows(deep: Deep, *, graph: Graph) -> Iterator[Row]:
    """(heading, text): what was rehearsed, the collectives and the peak of the measured rank."""
    rehearsal = deep.rehearsal
    ranks = ", ".join(map(str, rehearsal.ranks))
    layers = (
        f"{rehearsal.num_rehearsed_layers} of {rehearsal.num_layers} layers"
        if rehearsal.num_layers
        else "all layers"
    )
    cached = ", from the cache" if deep.is_cached else ""
    yield "rehearsed", f"rank {ranks} with {layers}: setup, steps, save{cached}"
    if rehearsal.measured is None:
        return
    yield from (("own code", note) for note in rehearsal.measured.notes)
    called = counted_collectives(sum(one.count for one in rehearsal.measured.sent))
    agreed = "" if deep.diagnostics else ", as estimated"
    # The other stages of a pipeline send and hold something else.
    whose = f"on rank {rehearsal.measured.rank}" if graph.size(MeshDim.PP) > 1 else "per rank"
    yield "collectives", f"{called.number} {whose} and step{agreed}"
    peak = rehearsal.measured.peak
    largest = sorted(peak.parts, key=lambda part: -part[1])[:_MAX_PARTS]
    parts = ", ".join(
        f"{name} {num_bytes(f'rehearsed_allocated_memory.{name}', size).text}" for name, size in largest
    )
    reserved = num_bytes("rehearsed_reserved_memory", rehearsal.measured.reserved_bytes)
    allocated = num_bytes("rehearsed_allocated_memory", peak.num_bytes)
    offloads = any(isinstance(op, FullyShard) and op.cpu_offload for op in graph.setup)
    where = " on device and host together" if offloads else ""
    yield (
        "rehearsed memory",
        f"{reserved.text} reserved {whose} at the peak{where}; "
        f"at most {allocated.text} of it allocated at once, in {peak.segment} ({parts})",
    )
