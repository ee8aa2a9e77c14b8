"""NaN and inf, and losses that stand out: which rank had them, in which sequences, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MAX_NAMED = 8
MAX_SEQUENCES = 16


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a rank, from 0, its share of the step's loss, and the sequences in it."""

    micro_step: int
    loss: float
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One rank's findings: micro-batches whose loss is the cause, and weights that hold NaN or inf."""

    rank: int
    micro_batches: tuple[MicroBatch, ...]
    weights: tuple[str, ...]

    def data(self) -> Mapping[str, Any]:
        """The statement as JSON, in which no number is NaN."""
        batches = [asdict(one) | {"loss": number(one.loss)} for one in self.micro_batches]
        return {"micro_batches": batches, "weights": list(self.weights)}


def statement(rank: int, data: Mapping[str, Any]) -> Statement:
    """The statement that `Statement.data` encoded."""
    batches = (
        MicroBatch(one["micro_step"], float(one["loss"]), tuple(one["sequences"]))
        for one in data["micro_batches"]
    )
    return Statement(rank, tuple(batches), tuple(data["weights"]))


def number(value: float) -> float | str:
    """The value, or its name if JSON has no number for it."""
    return value if math.isfinite(value) else str(value)


def describe(statements: Iterable[Statement]) -> str:
    """`rank 1, micro-batch 0 (sequences 4, 17): loss nan`, and weights with NaN or inf; else empty."""
    found = list(statements)
    batches = [*_batches(found)]
    weights = [*_weights(found)]
    return "; ".join((*_limited(batches, "micro-batches"), *_limited(weights, "weights")))


def _batches(statements: Sequence[Statement]) -> Iterator[str]:
    """Ranks that computed the same sequences are listed together."""
    alike: dict[tuple[int, tuple[int, ...], str], list[int]] = {}
    for one in statements:
        for batch in one.micro_batches:
            alike.setdefault((batch.micro_step, batch.sequences, f"{batch.loss:.6g}"), []).append(one.rank)
    for (micro_step, sequences, loss), ranks in alike.items():
        shown = ", ".join(map(str, sequences[:MAX_SEQUENCES]))
        more = f" and {len(sequences) - MAX_SEQUENCES} more" if len(sequences) > MAX_SEQUENCES else ""
        noun = "sequence" if len(sequences) == 1 else "sequences"
        yield f"{ranks_text(ranks)}, micro-batch {micro_step} ({noun} {shown}{more}): loss {loss}"


def _weights(statements: Sequence[Statement]) -> Iterator[str]:
    ranks: dict[str, list[int]] = {}
    for one in statements:
        for name in one.weights:
            ranks.setdefault(name, []).append(one.rank)
    yield from (f"{name} itself is NaN or inf on {ranks_text(where)}" for name, where in ranks.items())


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`."""
    shown = ", ".join(map(str, ranks[:MAX_NAMED]))
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def _limited(texts: Sequence[str], noun: str) -> tuple[str, ...]:
    if len(texts) <= MAX_NAMED:
        return tuple(texts)
    return (*texts[:MAX_NAMED], f"and {len(texts) - MAX_NAMED} more {noun}")
