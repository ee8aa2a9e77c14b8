"""The expected speed by source, and for trainers that a fit has not seen.

`python -m tests.estimate.published_sources` prints it: errors of every published table by itself, since most
rows are of one table; and for each trainer its rows by coefficients that are fitted to the other trainers'.
The second is what a new cluster or trainer can count on.

Rows are those of `published_speeds.csv`, and nanotron's 17 in `published_elsewhere.csv`, which no fit of
planc's has seen. nanotron printed MFU, which is tokens a second by FLOPs without causal halving and 989
TFLOP/s. Its ZeRO-1 enters as FSDP that keeps layers gathered, its fused kernels as transformers' modules,
and recomputation, which is not stated, as none.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median

from planc.estimate.efficiency import Efficiencies, efficiencies_of
from tests.estimate.published import Row
from tests.estimate.published_speed import (
    FITTED,
    Score,
    errors_of,
    fit,
    rows,
    scored,
    scores,
    spearman,
    work_of,
)

ELSEWHERE = Path(__file__).with_name("published_elsewhere.csv")
CATALOGUE = ("fit", "score", "unseen")
"""The rows by which trainers are judged: 18 of the 209 in llm-foundry's table, which then weighs no more."""

FITTED_WITHOUT = {
    "torchtitan": ((0.608, 0.333, 123.6, 0.535), (0.719, 0.331, 123.6, 0.535)),
    "Megatron": ((0.580, 0.168, 44.55, 0.154), (0.770, 0.324, 44.55, 0.154)),
    "llm-foundry": ((0.538, 0.203, 26.05, 0.109), (0.680, 0.760, 26.05, 0.109)),
    "nanotron": ((0.564, 0.160, 41.27, 0.071), (0.733, 0.365, 41.27, 0.071)),
}
"""What a fit to all other trainers' rows finds for H100 and for A100, in the order of `FITTED`: `--fit`."""


@cache
def elsewhere() -> tuple[Row, ...]:
    """The rows that no fit has seen, of a trainer that none has."""
    with ELSEWHERE.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def by_source() -> Mapping[str, tuple[Score, ...]]:
    """Every published row by the table that it is of, with planc's expectation."""
    found: dict[str, list[Score]] = {}
    for score in scores((*rows(), *elsewhere())):
        found.setdefault(score.row["source"], []).append(score)
    return {source: tuple(some) for source, some in found.items()}


def catalogue(*, of: str = "", without: str = "") -> tuple[Row, ...]:
    """The rows by which trainers are judged: those of one trainer, or of all others."""
    chosen = (row for row in (*rows(), *elsewhere()) if row["used_to"] in CATALOGUE)
    return tuple(row for row in chosen if row["trainer"] != without and of in ("", row["trainer"]))


def without_their_trainer() -> Mapping[str, tuple[Score, ...]]:
    """The catalogue's rows by trainer, with the expectation of coefficients fitted to the other trainers'."""
    return {
        trainer: tuple(
            scored(row, work_of(row), known=known_without(trainer, row["device"]))
            for row in catalogue(of=trainer)
        )
        for trainer in FITTED_WITHOUT
    }


def known_without(trainer: str, device: str) -> Efficiencies:
    """planc's efficiencies with the values that a fit to all other trainers' rows finds."""
    known = efficiencies_of(device)
    values = FITTED_WITHOUT[trainer][device.startswith("a100")]
    changed = {
        name: replace(getattr(known, name), expected=value)
        for name, value in zip(FITTED, values, strict=True)
    }
    return replace(known, **changed)


def ends_of(found: Iterable[Score]) -> tuple[float, float]:
    """Ratios of published to expected speed between which nine of ten further rows are to be.

    They are those of these rows, of which a twentieth may be beyond each.
    """
    ratios = sorted(score.published / score.expected for score in found)
    beyond = max(1, int(0.05 * (len(ratios) + 1)))
    return ratios[beyond - 1], ratios[-beyond]


def by_left_out_table(every: Iterable[Score]) -> Iterator[tuple[str, tuple[float, float], tuple[Score, ...]]]:
    """Each table with the ends that all other tables' rows give. Its trainer is in no fit of its rows."""
    found = tuple(every)
    for source in dict.fromkeys(score.row["source"] for score in found):
        own = tuple(score for score in found if score.row["source"] == source)
        yield source, ends_of(score for score in found if score.row["source"] != source), own


def num_between(ends: tuple[float, float], found: Iterable[Score]) -> int:
    """The rows whose speed is between these ratios of what is expected."""
    return sum(ends[0] <= score.published / score.expected <= ends[1] for score in found)


def num_covered(found: Iterable[Score]) -> int:
    """The rows inside their interval."""
    return sum(score.slow <= score.published <= score.fast for score in found)


def report() -> Iterator[str]:
    """Three tables: by source, by trainers that no fit has seen, and with intervals from other tables."""
    yield from _table("by source, as planc expects", by_source())
    yield ""
    unseen = without_their_trainer()
    yield from _table("by trainer, fitted to the others", unseen)
    every = tuple(score for some in unseen.values() for score in some)
    yield _line("every trainer", every)
    worst = sorted(every, key=lambda score: -abs(score.error))[:4]
    yield "worst: " + "; ".join(f"{score.name} {100 * score.error:+.0f} %" for score in worst)
    yield ""
    yield from _left_out(every)


def _left_out(every: tuple[Score, ...]) -> Iterator[str]:
    title = "by table, its interval from the other tables alone"
    yield f"{title:<66}{'rows':>5}{'interval':>16}{'inside':>10}"
    total = 0
    for source, ends, own in by_left_out_table(every):
        inside = num_between(ends, own)
        total += inside
        interval = f"{ends[0]:.2f} to {ends[1]:.2f}"
        yield f"{source:<66}{len(own):>5}{interval:>16}{f'{inside} of {len(own)}':>10}"
    yield f"{'every table':<66}{len(every):>5}{'':>16}{f'{total} of {len(every)}':>10}"


def _table(title: str, found: Mapping[str, tuple[Score, ...]]) -> Iterator[str]:
    yield f"{title:<66}{'rows':>5}{'median':>9}{'9 of 10':>9}{'worst':>8}{'Spearman':>10}{'in interval':>13}"
    for name, some in found.items():
        yield _line(name, some)


def _line(name: str, found: tuple[Score, ...]) -> str:
    errors = errors_of(found)
    worst = max(found, key=lambda score: abs(score.error)).error
    most = f"{100 * errors[ceil(0.9 * len(errors)) - 1]:.1f} %"
    order = f"{spearman(found):.3f}" if len(found) > 3 else "-"
    inside = f"{num_covered(found)} of {len(found)}"
    middle = f"{100 * median(errors):.1f} %"
    return f"{name:<66}{len(found):>5}{middle:>9}{most:>9}{f'{100 * worst:+.0f} %':>8}{order:>10}{inside:>13}"


def fitted_report() -> Iterator[str]:
    """The coefficients as fits without each trainer find them: minutes."""
    for trainer in FITTED_WITHOUT:
        found = fit(catalogue(without=trainer))
        for is_ampere in (False, True):
            values = ", ".join(f"{found.value(name, is_ampere=is_ampere):.4g}" for name in FITTED)
            yield f"{trainer}, {'a100' if is_ampere else 'h100'}: {values}"


if __name__ == "__main__":
    print("\n".join(fitted_report() if "--fit" in sys.argv[1:] else report()))
