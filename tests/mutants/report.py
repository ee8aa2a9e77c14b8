"""A campaign's results as text: the confusion table, and every mutant on which planc was wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutants.campaign import Result
from tests.mutants.verdicts import ON_PURPOSE, RAISED

HOLE, CAUGHT = "bad accepted", "bad rejected"
FINE, ALARM = "good accepted", "good rejected"
ON_PRINCIPLE = "on principle"
"""A plan whose run is right, rejected for nothing but declared reasons that numbers cannot show."""
CLASSES = (HOLE, CAUGHT, FINE, ALARM, ON_PRINCIPLE)


def class_of(result: Result, depth: str) -> str:
    """Where a result stands in the confusion table of a depth of checking."""
    rejected = result.rejected_by(depth)
    if result.is_bad:
        return CAUGHT if rejected else HOLE
    if not rejected:
        return FINE
    return ON_PRINCIPLE if set(_codes(result)) <= set(ON_PURPOSE) else ALARM


def report(results: Sequence[Result]) -> str:
    """The tables and lists, ready to print."""
    return "\n".join(_lines(results))


def _lines(results: Sequence[Result]) -> Iterator[str]:
    depths = tuple(results[0].codes) if results else ()
    for depth in depths:
        yield from _table(results, depth)
    for name in (HOLE, ALARM):
        chosen = [result for result in results if class_of(result, depths[-1]) == name]
        yield f"\n{name}: {len(chosen)}"
        yield from (told(result) for result in chosen)
    raised = [result for result in results if any(code.startswith(RAISED) for code in _codes(result))]
    yield f"\nchecks that raised: {len(raised)}"
    yield from (told(result) for result in raised)
    principled = (result for result in results if class_of(result, depths[-1]) == ON_PRINCIPLE)
    counted = Counter(code for result in principled for code in _codes(result))
    yield f"\nrejected on principle: {dict(counted)}"
    yield f"runs: {dict(Counter(result.status for result in results))}"


def _table(results: Sequence[Result], depth: str) -> Iterator[str]:
    """Rows of counts by mutation type, their sum, and the two rates."""
    yield f"\n{depth}" + "".join(f"{name:>15}" for name in ("", *CLASSES)).replace(" " * 15, " " * 8, 1)
    types = sorted({result.mutant.type for result in results})
    total: Counter[str] = Counter()
    for type_name in (*types, ""):
        row = Counter(class_of(one, depth) for one in results if one.mutant.type == type_name)
        total += row
        shown = row if type_name else total
        yield f"{type_name or 'all':<14}" + "".join(f"{shown[name]:>15}" for name in CLASSES)
    bad, good = total[HOLE] + total[CAUGHT], total[FINE] + total[ALARM]
    yield f"caught {_share(total[CAUGHT], bad)} of bad, rejected {_share(total[ALARM], good)} of good"


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({100 * part / whole:.1f} %)" if whole else "0/0"


def _codes(result: Result) -> tuple[str, ...]:
    return tuple(code for found in result.codes.values() for code in found)


def told(result: Result) -> str:
    """One result on one line."""
    codes = " ".join(_codes(result)) or "-"
    broken = f" [{'; '.join(result.promises)}]" if result.promises else ""
    seconds = sum(result.seconds.values())
    mutant = result.mutant
    return (
        f"{mutant.path.name} {mutant.type:<12} {class_of(result, tuple(result.codes)[-1]):<13} {codes:<10} "
        f"{result.status:<8}{seconds:5.1f} s  {mutant.base}: {mutant.note} | {result.detail}{broken}"
    )


def write_results(results: Sequence[Result], path: Path) -> None:
    """One line of JSON a result, for whoever wants to count otherwise."""
    lines = (json.dumps(asdict(result), default=str) for result in results)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
