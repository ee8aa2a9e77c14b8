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
class Outputs:
    """The first module of a pipeline stage that put out NaN or inf for a micro-batch.

    `place` counts the stage's modules.
    """

    stage: int
    place: int
    module: str
    micro_step: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gradient:
    """The last parameter of a rank, in the model's order, whose gradient holds NaN or inf.

    Backward goes from the last to the first. `stage` is 0 without a pipeline.
    """

    stage: int
    place: int
    name: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One rank's findings: micro-batches whose loss is the cause, and weights that hold NaN or inf.

    In a pipeline, `outputs` tell where a loss became NaN or inf. `gradient` is there if the loss is finite.
    """

    rank: int
    micro_batches: tuple[MicroBatch, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[Outputs, ...] = ()
    gradient: Gradient | None = None
    device: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.micro_batches or self.weights or self.outputs or self.gradient)

    def data(self) -> Mapping[str, Any]:
        """The statement as JSON, in which no number is NaN; what is rarely there is left out."""
        data: dict[str, Any] = {
            "micro_batches": [asdict(batch) | {"loss": number(batch.loss)} for batch in self.micro_batches],
            "weights": list(self.weights),
        }
        if self.outputs:
            data["outputs"] = [asdict(output) for output in self.outputs]
        if self.gradient:
            data["gradient"] = asdict(self.gradient)
        return data | ({"device": self.device} if self.outputs or self.gradient else {})


def statement(rank: int, data: Mapping[str, Any]) -> Statement:
    """The statement that `Statement.data` encoded."""
    batches = (
        MicroBatch(one["micro_step"], float(one["loss"]), tuple(one["sequences"]))
        for one in data["micro_batches"]
    )
    outputs = (Outputs(**{**one, "sequences": tuple(one["sequences"])}) for one in data.get("outputs", ()))
    gradient = Gradient(**data["gradient"]) if "gradient" in data else None
    return Statement(
        rank, tuple(batches), tuple(data["weights"]), tuple(outputs), gradient, data.get("device", "")
    )


def first_outputs(statements: Iterable[Statement]) -> list[tuple[Statement, Outputs]]:
    """The first module of the model that put out NaN or inf, by rank and micro-batch."""
    found = [(one, outputs) for one in statements for outputs in one.outputs]
    first = min(((outputs.stage, outputs.place) for _, outputs in found), default=None)
    return [(one, outputs) for one, outputs in found if (outputs.stage, outputs.place) == first]


def first_gradients(statements: Iterable[Statement]) -> list[tuple[Statement, Gradient]]:
    """The last parameter of the model whose gradient holds NaN or inf, on each rank that has it."""
    found = [(one, one.gradient) for one in statements if one.gradient]
    last = max(((gradient.stage, gradient.place) for _, gradient in found), default=None)
    return [(one, gradient) for one, gradient in found if (gradient.stage, gradient.place) == last]


def number(value: float) -> float | str:
    """The value, or its name if JSON has no number for it."""
    return value if math.isfinite(value) else str(value)


def describe(statements: Iterable[Statement]) -> str:
    """`rank 1, micro-batch 0 (sequences 4, 17): loss nan`, and weights with NaN or inf; else empty.

    If an earlier stage of a pipeline put out NaN, the losses that follow from it are left out.
    """
    found = list(statements)
    batches = [*_outputs(found)] or [*_batches(found), *_gradients(found)]
    weights = [*_weights(found)]
    return "; ".join((*_limited(batches, "micro-batches"), *_limited(weights, "weights")))


def _batches(statements: Sequence[Statement]) -> Iterator[str]:
    """Ranks that computed the same sequences are listed together."""
    alike: dict[tuple[int, tuple[int, ...], str], list[int]] = {}
    for one in statements:
        for batch in one.micro_batches:
            alike.setdefault((batch.micro_step, batch.sequences, f"{batch.loss:.6g}"), []).append(one.rank)
    for (micro_step, sequences, loss), ranks in alike.items():
        yield f"{ranks_text(ranks)}, {_micro_batch(micro_step, sequences)}: loss {loss}"


def _outputs(statements: Sequence[Statement]) -> Iterator[str]:
    """Ranks that computed the same micro-batch are listed together, if their devices have one name."""
    alike: dict[tuple[Outputs, str], list[int]] = {}
    for one, outputs in first_outputs(statements):
        alike.setdefault((outputs, one.device), []).append(one.rank)
    for (outputs, device), ranks in alike.items():
        yield (
            f"{outputs.module} (stage {outputs.stage}) was the first to put out NaN or inf, on "
            f"{ranks_text(ranks)} ({device}), for {_micro_batch(outputs.micro_step, outputs.sequences)}"
        )


def _gradients(statements: Sequence[Statement]) -> Iterator[str]:
    ranks: dict[str, list[int]] = {}
    for one, gradient in first_gradients(statements):
        ranks.setdefault(gradient.name, []).append(one.rank)
    for name, where in ranks.items():
        yield f"{name} is the last parameter with NaN or inf in its gradient, on {ranks_text(where)}"


def _micro_batch(micro_step: int, sequences: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sequences[:MAX_SEQUENCES]))
    more = f" and {len(sequences) - MAX_SEQUENCES} more" if len(sequences) > MAX_SEQUENCES else ""
    noun = "sequence" if len(sequences) == 1 else "sequences"
    return f"micro-batch {micro_step} ({noun} {shown}{more})"


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
