"""What a plan needs: memory per rank, and what each rank sends in a step. Both from `planc estimate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planc.diff.model import Action, Change, Finding, Group
from planc.diff.side import Side
from planc.estimate.model import Collective, Estimate
from planc.show.table import format_bytes
from planc.vocab import MeshDim

PEAK = "peak"
TOTAL = "sent in all"
UNKNOWN = "not compared: a model is not here"
_CROSSES_NODES = "P304"


def compare_resources(old: Side, new: Side) -> Iterator[Change]:
    """Memory and communication; that they are not known, where a model is not here to be measured."""
    before, after = old.estimate(), new.estimate()
    if before is None or after is None:
        yield Change(Group.MEMORY, Action.KEEP, PEAK, note=UNKNOWN)
        return
    yield from _memory(before, after, new)
    yield from _communication(before, after, new)


def _memory(before: Estimate, after: Estimate, new: Side) -> Iterator[Change]:
    """The peak, then each part of it."""
    was, now = before.memory.peak.num_bytes, after.memory.peak.num_bytes
    yield _bytes_change(Group.MEMORY, PEAK, was, now, findings=new.broken("peak_memory"))
    per_rank = new.broken("parameters_per_rank")
    for part in after.memory.parts:
        was = before.memory.part(part.name).num_bytes
        findings = per_rank if part.name == "parameters" else ()
        yield _bytes_change(Group.MEMORY, part.name, was, part.num_bytes, findings=findings)


def _communication(before: Estimate, after: Estimate, new: Side) -> Iterator[Change]:
    """What a rank sends over each mesh dim, with the number of collectives where it differs."""
    for over in dict.fromkeys(one.over for one in (*before.collectives, *after.collectives)):
        was, now = _over(before, over), _over(after, over)
        yield _bytes_change(
            Group.COMMUNICATION,
            f"{', '.join(over)} collectives",
            before.sent_bytes(was),
            after.sent_bytes(now),
            note=_counts(was, now),
            findings=_findings(new, over),
        )
    total = before.sent_bytes(), after.sent_bytes()
    yield _bytes_change(Group.COMMUNICATION, TOTAL, *total, findings=new.broken("sent_bytes_per_step"))


def _over(found: Estimate, over: tuple[MeshDim, ...]) -> tuple[Collective, ...]:
    return tuple(one for one in found.collectives if one.over == over)


def _findings(new: Side, over: tuple[MeshDim, ...]) -> tuple[Finding, ...]:
    if over == (MeshDim.TP,):
        return (*new.broken("tp_bytes_per_step"), *new.found(_CROSSES_NODES))
    return new.broken("cp_bytes_per_step") if over == (MeshDim.CP,) else new.broken("fsdp_bytes_per_step")


def _counts(old: tuple[Collective, ...], new: tuple[Collective, ...]) -> str:
    """`all_gather 36 -> 72`, for the kinds whose number differs."""
    was, now = (_num_by_kind(side) for side in (old, new))
    return ", ".join(
        f"{kind} {was[kind]:_} -> {now[kind]:_}"
        for kind in dict.fromkeys((*was, *now))
        if was[kind] != now[kind]
    )


def _num_by_kind(collectives: tuple[Collective, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for one in collectives:
        counts[one.kind.value] += one.count
    return counts


def _bytes_change(
    group: Group, name: str, was: int, now: int, *, note: str = "", findings: tuple[Finding, ...] = ()
) -> Change:
    """A size that came, went, changed or stayed; exact where rounding would hide the change."""
    texts = format_bytes(was), format_bytes(now)
    if was != now and texts[0] == texts[1]:
        texts = f"{was:_} B", f"{now:_} B"
    if was == now:
        action = Action.CHANGE if note else Action.KEEP
    else:
        action = Action.ADD if was == 0 else Action.REMOVE if now == 0 else Action.CHANGE
    old, new = (None if action is Action.ADD else texts[0]), (None if action is Action.REMOVE else texts[1])
    return Change(group, action, name, old, new, note, findings=() if action is Action.KEEP else findings)
