"""An estimate as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from planc.estimate.estimate import estimated_facts
from planc.estimate.model import CONVENTION, Amount, Collective, Estimate
from planc.show.table import format_bytes, plural, render_table

_SCALAR_BYTES = 8
"""Token counts, losses and norms: listed as data, too small to be worth a line of text."""


def estimate_text(found: Estimate) -> str:
    """The convention, memory by part, and communication by mesh dim, kind and cause."""
    memory = [_amount_row(part) for part in found.memory.parts if part.num_bytes]
    memory.append(_amount_row(found.memory.peak))
    large = [one for one in found.collectives if one.input_bytes > _SCALAR_BYTES]
    convention = "\n".join(CONVENTION)
    text = f"{convention}\n\nMEMORY PER RANK\n{render_table(memory, right=(1,), indent='  ')}"
    text += f"  reached in: {found.memory.peak_phase}\n"
    text += "\nCOMMUNICATION PER STEP, PER RANK\n"
    if not large:
        return f"{text}  none\n"
    sent = format_bytes(found.sent_bytes())
    return f"{text}{render_table([*_traffic_rows(large)], right=(2, 4), indent='  ')}  {sent} in all\n"


def _amount_row(amount: Amount) -> tuple[str, ...]:
    size = "exact" if amount.is_exact else "estimated"
    return amount.name, format_bytes(amount.num_bytes), size, amount.formula


def _traffic_rows(collectives: list[Collective]) -> Iterator[tuple[str, ...]]:
    """One row for each mesh dim, kind and cause, whatever sizes it has."""
    groups: dict[tuple[str, str, str], list[Collective]] = {}
    for one in collectives:
        groups.setdefault((", ".join(one.over), one.kind, one.cause), []).append(one)
    for (over, kind, cause), members in groups.items():
        count = sum(member.count for member in members)
        sent = sum(member.sent_bytes for member in members)
        ranks = plural(members[0].group_size, "rank")
        yield over, kind, f"{count:_}", f"over {ranks}", format_bytes(sent), cause


def estimate_data(found: Estimate) -> dict[str, Any]:
    """Everything, nothing added up but the facts."""
    return {
        "convention": " ".join(CONVENTION),
        "facts": dict(estimated_facts(found)),
        "memory": {
            "parts": [asdict(part) for part in found.memory.parts],
            "peak": {**asdict(found.memory.peak), "phase": found.memory.peak_phase},
            "phases": dict(found.memory.phases),
        },
        "collectives": [
            {**asdict(one), "over": list(one.over), "sent_bytes": one.sent_bytes} for one in found.collectives
        ],
    }
