"""The kernels of a plan's attention: as one line, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planc.devices.attention_kernels import AttentionUse
from planc.estimate.result import Estimate
from planc.figures import needs
from planc.graph.text import summarise
from planc.tables import render_table


def attention_line(estimated: Estimate) -> str:
    """`flash in A; memory-efficient in B (flash takes no mask)`; empty without attention."""
    uses = estimated.attention
    return "; ".join(_line(one, is_only=len(uses) == 1) for one in uses)


def attention_text(estimated: Estimate) -> str:
    """A row for each kind of attention: its kernel, its call, what it holds, and why no better kernel."""
    rows = [*attention_rows(estimated)]
    return f"ATTENTION\n{render_table(rows, right=(3,), indent='  ')}" if rows else ""


def attention_rows(estimated: Estimate) -> Iterator[tuple[str, ...]]:
    """Modules, kernel, the call that it depends on, bytes for pairs of tokens, reasons."""
    for use in estimated.attention:
        held = f"{needs.pair_bytes(use).text} for pairs of tokens"
        yield ", ".join(summarise(use.modules)), use.name, str(use.call or ""), held, _reasons(use)


def attention_data(estimated: Estimate) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "modules": list(use.modules),
            "kernel": use.name,
            "call": None if use.call is None else str(use.call),
            "reasons": list(use.reasons),
            "pair_bytes": use.pair_bytes,
        }
        for use in estimated.attention
    ]


def _line(use: AttentionUse, *, is_only: bool) -> str:
    place = "" if is_only else f" in {', '.join(summarise(use.modules))}"
    held = f"{needs.pair_bytes(use).text} for pairs of tokens" if use.pair_bytes else ""
    details = "; ".join(filter(None, (_reasons(use), held)))
    return f"{use.name}{place}{f' ({details})' if details else ''}"


def _reasons(use: AttentionUse) -> str:
    return "the model's own code" if use.kernel is None else ", ".join(use.reasons)
