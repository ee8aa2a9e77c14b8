"""Which ranks a run lost, and what they were doing, from the ranks' own records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planc.graph.graph import Graph
from planc.runtime.ranks.whereabouts import State, Whereabouts
from planc.tables import plural

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


def ranks_behind(records: Records, *, own_rank: int) -> tuple[Lost, ...]:
    """The live ranks that this one waits for: those that have begun fewer ops.

    If there are none, those still in the op in which this one gave up: all waiting ranks have left it.
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
    return behind or tuple(in_same_op)


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
    """What is wrong with a process of this machine, from /proc; empty if it runs, or without /proc."""
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
