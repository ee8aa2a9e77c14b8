"""The ranks that a run lost, and what they were doing, from the ranks' own records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.ops import ReceiveHidden, SendHidden, SplitPipeline
from planc.runtime.ranks.whereabouts import State, Whereabouts
from planc.tables import plural
from planc.vocab import MeshDim

Records = Sequence[Whereabouts | None]
MAX_NAMED = 8
"""The most lost ranks to list: a failed machine takes many with it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank that others wait for, and why it is considered lost."""

    rank: int
    reason: str
    record: Whereabouts


def ended_ranks(records: Records, *, own_rank: int, life: Callable[[Whereabouts], str]) -> tuple[Lost, ...]:
    """The ranks that exited, failed or stopped by themselves, not because they lost another.

    `life` returns what is wrong with a record's process; empty if nothing is known to be wrong.
    """
    return tuple(
        Lost(rank, reason, record)
        for rank, record in enumerate(records)
        if rank != own_rank and record is not None and (reason := _reason(record, life))
    )


def ranks_behind(records: Records, graph: Graph, *, own_rank: int) -> tuple[Lost, ...]:
    """The live ranks that this one waits for: those that have begun fewer ops.

    If there are none, those still in the op in which this one gave up: all waiting ranks have left it.
    Stages of a pipeline have begun unlike numbers of ops, and one that waits for a message is not the cause:
    the rank is named that it waits for in the end.
    """
    own = records[own_rank]
    running = [
        (rank, record)
        for rank, record in enumerate(records)
        if rank != own_rank and record is not None and record.state is State.RUNNING
    ]
    if own is None:
        return ()
    behind = tuple(Lost(rank, "is behind", record) for rank, record in running if record.count < own.count)
    in_same_op = (
        Lost(rank, "does not take part", record) for rank, record in running if record.count == own.count
    )
    found = behind or tuple(in_same_op)
    return _awaited(found, dict(running), graph, records=records, own_rank=own_rank) or found


def _awaited(
    lost: Sequence[Lost],
    running: Mapping[int, Whereabouts],
    graph: Graph,
    *,
    records: Records,
    own_rank: int,
) -> tuple[Lost, ...]:
    """The live ranks on which this one's message, or else those of the ranks found, depend in the end."""
    own = records[own_rank]
    assert own is not None
    starts = (own_rank,) if _sender(own_rank, records, graph) is not None else [one.rank for one in lost]
    ends = sorted({_last_sender(rank, records, graph) for rank in starts} & running.keys())
    return tuple(
        Lost(rank, "is behind" if running[rank].count < own.count else "does not take part", running[rank])
        for rank in ends
    )


def _last_sender(rank: int, records: Records, graph: Graph) -> int:
    """The last of a chain of ranks in which each waits for a message of the next; any of a circle."""
    seen = {rank}
    while (sender := _sender(rank, records, graph)) is not None and sender not in seen:
        seen.add(rank := sender)
    return rank


def _sender(rank: int, records: Records, graph: Graph) -> int | None:
    """The rank whose message a rank waits for, or that has to take the rank's own; None outside of both."""
    record, split = records[rank], next((op for op in graph.setup if isinstance(op, SplitPipeline)), None)
    if record is None or record.op is None or split is None:
        return None
    op = tuple(graph.ops())[record.op]
    if not isinstance(op, ReceiveHidden | SendHidden):
        return None
    step = 1 if isinstance(op, SendHidden) == (op.what == "activations") else -1
    size = graph.size(MeshDim.PP)
    place = mesh_places(graph, rank=rank)[MeshDim.PP.value]
    is_end = place + step not in range(size)
    if is_end and len(split.stages) == size:
        return None
    stride = math.prod(
        length for mesh_dim, length in graph.mesh[[one for one, _ in graph.mesh].index(MeshDim.PP) + 1 :]
    )
    return rank + stride * ((place + step) % size - place)


def ranks_elsewhere(records: Records, *, own_rank: int) -> tuple[Lost, ...]:
    """The ranks that are not in this one's op, though none is behind: mismatched collectives.

    One of them skipped a collective or called another; only the position of each is known.
    """
    own = records[own_rank]
    if own is None:
        return ()
    place = (own.op, own.step, own.micro_step)
    return tuple(
        Lost(rank, "is out of step", record)
        for rank, record in enumerate(records)
        if rank != own_rank
        and record is not None
        and record.state in (State.RUNNING, State.CUT_OFF)
        and (record.op, record.step, record.micro_step) != place
    )


def _reason(record: Whereabouts, life: Callable[[Whereabouts], str]) -> str:
    match record.state:
        case State.CUT_OFF:
            return ""
        case State.FAILED:
            return f"failed: {record.message}"
        case State.DONE:
            return "has finished its run"
        case State.RUNNING:
            return life(record)


def process_life(record: Whereabouts) -> str:
    """Describe what is wrong with a process of this machine, from /proc; empty if it runs or has no /proc."""
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        # The name may contain anything, even parentheses: the state follows the last one.
        stat = Path(f"/proc/{record.process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "exited without an error message"
    match stat.rpartition(")")[2].split()[:1]:
        case ["T" | "t"]:
            return "is stopped (SIGSTOP or a debugger)"
        case ["Z" | "X" | "x"]:
            return "exited without an error message"
        case _:
            return ""


def beat_life(before: Records, after: Records) -> Callable[[Whereabouts], str]:
    """Find silent ranks by records taken some seconds apart, for processes on any machine."""
    silent = {
        id(new)
        for old, new in zip(before, after, strict=True)
        if old is not None and new is not None and old.beat == new.beat
    }
    return lambda record: "does not respond" if id(record) in silent else ""


def describe(lost: Sequence[Lost], graph: Graph, *, now: float) -> str:
    """One clause per rank: its place, what happened to it, the op it was in, and its line of the plan."""
    texts = [_clause(one, graph, now=now) for one in lost[:MAX_NAMED]]
    if len(lost) > MAX_NAMED:
        texts.append(f"and {plural(len(lost) - MAX_NAMED, 'more rank')}")
    return "; ".join(texts)


def _clause(lost: Lost, graph: Graph, *, now: float) -> str:
    record = lost.record
    place = ", ".join((record.host, *coordinates(graph, rank=lost.rank)))
    named = f"rank {lost.rank} ({place}) {lost.reason}"
    if record.op is None:
        return f"{named}, before its first op"
    op = tuple(graph.ops())[record.op]
    step = f" at step {record.step}" if record.step else ""
    line = f", {op.span.file}:{op.span.line}" if op.span else ""
    return f"{named}, in op `{op.name}`{step}{line}, for {max(0.0, now - record.since):.0f} s"


def coordinates(graph: Graph, *, rank: int) -> tuple[str, ...]:
    """`dp_shard 1`, `tp 0`: a rank's place along every mesh dim of more than one rank, outermost first."""
    return tuple(f"{mesh_dim} {place}" for mesh_dim, place in mesh_places(graph, rank=rank).items())


def mesh_places(graph: Graph, *, rank: int) -> dict[str, int]:
    """A rank's place by mesh dim, of those with more than one rank, outermost first."""
    places: dict[str, int] = {}
    for mesh_dim, size in reversed(graph.mesh):
        rank, place = divmod(rank, size)
        if size > 1:
            places[mesh_dim.value] = place
    return dict(reversed(places.items()))
