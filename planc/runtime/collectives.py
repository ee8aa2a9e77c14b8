"""The collectives of a step, as predicted and as sent: how they differ, and on which ranks, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planc.runtime.numerics import ranks_text
from planc.tables import plural

Collectives = Mapping[tuple[str, tuple[str, ...], int | None], int]
"""Collectives by (kind, dims of the group, bytes of the rank's input), counted. None: any number of bytes, as
routers decide how many tokens a rank sends."""
Predictions = Mapping[str, Collectives]
"""Predictions by the op that ends the count: `optimizer.step` for those of every step, others for their own
when due."""
Sent = Mapping[tuple[str, str, tuple[str, ...], int | None], int]
"""The same, by (op of the graph, kind, mesh dims, bytes)."""

STEP = "optimizer.step"
"""The op that ends the count of a step."""
SKIP_CHECK = "--skip-collectives-check"
"""The option of a run that leaves the comparison out."""
_MAX_DIFFERENCES = 4


@dataclass(frozen=True, slots=True)
class Differences:
    """One rank's differences. `in_number` are by kind and group; `in_size`, of rank 0 only, by bytes too."""

    rank: int
    in_number: tuple[str, ...]
    in_size: tuple[str, ...]

    def data(self) -> Mapping[str, Any]:
        """The differences as JSON."""
        return {"in_number": self.in_number, "in_size": self.in_size}


def differences_of(rank: int, data: Mapping[str, Any]) -> Differences:
    """The differences that `Differences.data` encoded."""
    return Differences(rank, tuple(data["in_number"]), tuple(data["in_size"]))


def differences(rank: int, predicted: Collectives, sent: Sent) -> Differences:
    """Compare the collectives that a rank sent with those predicted.

    Bytes are predicted for rank 0: others may hold smaller shards, but send as often.
    """
    in_size = _compared(predicted, _without_routed(predicted, sent)) if rank == 0 else ()
    number: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for (kind, over, _), count in predicted.items():
        number[kind, over] += count
    return Differences(rank, tuple(_compared(number, _without_bytes(sent))), tuple(in_size))


def _without_routed(predicted: Collectives, sent: Sent) -> Sent:
    """The collectives sent, without the bytes of messages that are not predicted by theirs where any are."""
    routed = {(kind, over) for kind, over, num_bytes in predicted if num_bytes is None}
    left, compared = Counter(predicted), Counter[tuple[str, str, tuple[str, ...], int | None]]()
    for (op, kind, over, num_bytes), count in sent.items():
        known = min(count, left[kind, over, num_bytes]) if (kind, over) in routed else count
        left[kind, over, num_bytes] -= known
        compared[op, kind, over, num_bytes] += known
        compared[op, kind, over, None] += count - known
    return +compared


def _without_bytes(sent: Sent) -> Mapping[tuple[str, str, tuple[str, ...]], int]:
    found: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for (op, kind, over, _), count in sent.items():
        found[op, kind, over] += count
    return found


def _compared(predicted: Mapping[Any, int], sent: Mapping[Any, int]) -> Iterator[str]:
    """`all_reduce over tp of 8 bytes (2 predicted, 3 sent by grads.clip)`, for each key that differs.

    A key of `sent` is the graph's op, and then a key of `predicted`.
    """
    ops: dict[Any, dict[str, int]] = {}
    for (op, *key), count in sent.items():
        ops.setdefault(tuple(key), {})[op] = count
    for key in dict.fromkeys((*predicted, *ops)):
        number = sum(ops.get(key, {}).values())
        if number != predicted.get(key, 0):
            by = f" by {', '.join(ops[key])}" if key in ops else ""
            yield f"{_name(*key)} ({predicted.get(key, 0)} predicted, {number} sent{by})"


def _name(kind: str, over: Sequence[str], num_bytes: int | None = None) -> str:
    size = "" if num_bytes is None else f" of {plural(num_bytes, 'byte')}"
    return f"{kind} over {', '.join(over)}{size}"


def describe(found: Iterable[Differences]) -> str:
    """Every rank's differences; ranks that differ in the same way are listed together."""
    alike: dict[tuple[str, ...], list[Differences]] = {}
    for one in found:
        alike.setdefault(one.in_number or one.in_size, []).append(one)
    return "; ".join(
        f"{ranks_text([one.rank for one in group])}: {_limited(group[0].in_size or texts)}"
        for texts, group in alike.items()
        if texts
    )


def _limited(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _MAX_DIFFERENCES} more" if len(texts) > _MAX_DIFFERENCES else ""
    return f"{', '.join(texts[:_MAX_DIFFERENCES])}{more}"
