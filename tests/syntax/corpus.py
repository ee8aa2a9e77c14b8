"""Plans with five slips each, at known lines, made from a seed; and how well findings meet them.

`python -m tests.syntax.corpus` prints the figures: per operator with one slip in a file, for all with five.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from planc.diagnostics import Diagnostic
from planc.source import SourceFile
from planc.syntax.parse import parse
from tests.plans import FULL, PLANS
from tests.syntax.operators import OPERATORS, Row, Site

NUM_FILES = 320
MIN_LINES = 30
"""A plan of a few lines has no room for five slips."""
NUM_SLIPS = 5
SEED = 3


@dataclass(frozen=True, slots=True)
class Slip:
    """`lines` are those on which a finding is right."""

    operator: str
    lines: frozenset[int]


@dataclass(frozen=True, slots=True)
class Spoilt:
    text: str
    slips: tuple[Slip, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """`num_met` slips have a finding of their own; every further finding is false."""

    num_slips: int
    num_met: int
    num_findings: int

    @property
    def recall(self) -> float:
        return self.num_met / max(1, self.num_slips)

    @property
    def precision(self) -> float:
        return self.num_met / max(1, self.num_findings)


def texts() -> tuple[str, ...]:
    """Sound plans in layouts that people use: as shipped, indented by four, dense, calls on many lines."""
    shipped = [path.read_text(encoding="utf-8") for path in sorted(PLANS.rglob("*.plan"))]
    found = [text for text in (*shipped, FULL) if text.count("\n") >= MIN_LINES]
    deep = [re.sub(r"^  ", "    ", text, flags=re.MULTILINE) for text in found]
    dense = [re.sub(r"\n+", "\n", text) for text in found]
    return (*found, *deep, *dense, *map(_calls_over_lines, found))


def _calls_over_lines(text: str) -> str:
    def spread(match: re.Match[str]) -> str:
        indent, start, arguments = match.groups()
        lines = "".join(f"\n{indent}  {argument}," for argument in re.split(r", (?=\w+ = )", arguments))
        return f"{indent}{start}({lines}\n{indent})"

    return re.sub(r"^(\s*)(\w+ = \w+)\((\w+ = .*, \w+ = .*)\)$", spread, text, flags=re.MULTILINE)


def spoilt(text: str, *, random: Random, operators: Sequence[str], num_slips: int) -> Spoilt:
    """A text with slips in different statements, fewer where the operators find no more places."""
    rows = [Row(line) for line in text.split("\n")]
    taken: set[object] = set()
    slips: list[tuple[str, frozenset[object]]] = []
    for _ in range(num_slips * 40):
        if len(slips) == num_slips:
            break
        name = random.choice(operators)
        free = [at for at, row in enumerate(rows) if row.identity not in taken and row.text.strip()]
        for at in random.sample(free, len(free)):
            trial = [Row(row.text, row.identity) for row in rows]
            site = Site(trial, trial[at], random)
            touched = {row.identity for row in site.statement}
            right = OPERATORS[name](site)
            touched |= {row.identity for row in site.touched}
            if right is not None and not touched & taken:
                rows = trial
                taken |= touched | {row.identity for row in right}
                slips.append((name, frozenset(row.identity for row in right)))
                break
    numbers = {row.identity: number for number, row in enumerate(rows, 1)}
    return Spoilt(
        "\n".join(row.text for row in rows),
        tuple(Slip(name, frozenset(numbers[identity] for identity in right)) for name, right in slips),
    )


def corpus(*, num_files: int = NUM_FILES, num_slips: int = NUM_SLIPS) -> Iterator[Spoilt]:
    """The files of the corpus: the same in every run."""
    sources = texts()
    for number in range(num_files):
        random = Random(f"{SEED}:{number}")
        yield spoilt(
            sources[number % len(sources)], random=random, operators=tuple(OPERATORS), num_slips=num_slips
        )


def one_each(operator: str) -> Iterator[Spoilt]:
    """Files with this one slip."""
    for number, text in enumerate(texts()):
        found = spoilt(text, random=Random(f"{operator}:{number}"), operators=(operator,), num_slips=1)
        if found.slips:
            yield found


def findings(text: str) -> tuple[Diagnostic, ...]:
    return parse(SourceFile("x.plan", text))[1]


def score(files: Sequence[Spoilt]) -> Score:
    """How well findings meet slips; every finding counts for one slip at most."""
    num_met = num_findings = 0
    for file in files:
        reported = [finding.primary.span.line for finding in findings(file.text)]
        num_findings += len(reported)
        num_met += len([slip for slip in file.slips if slip.lines & set(reported)])
    return Score(sum(len(file.slips) for file in files), num_met, num_findings)


def by_operator(files: Sequence[Spoilt]) -> dict[str, float]:
    """The recall of each operator's slips."""
    met: dict[str, list[bool]] = {}
    for file in files:
        reported = {finding.primary.span.line for finding in findings(file.text)}
        for slip in file.slips:
            met.setdefault(slip.operator, []).append(bool(slip.lines & reported))
    return {name: sum(hits) / len(hits) for name, hits in met.items()}


def table() -> str:
    """Recall and precision with one slip in a file, and recall among five, per operator."""
    files = tuple(corpus())
    among_five = by_operator(files)
    lines = [
        f"{'':24} {'one slip in a file':>20} {f'{NUM_SLIPS} in a file':>12}",
        f"{'operator':24} {'recall':>10}{'precision':>10} {'recall':>12}",
    ]
    for name in OPERATORS:
        alone = score(tuple(one_each(name)))
        lines.append(f"{name:24} {alone.recall:>10.2f}{alone.precision:>10.2f} {among_five[name]:>12.2f}")
    total = score(files)
    lines.append(
        f"{len(files)} files, {total.num_slips} slips, {total.num_findings} findings: "
        f"recall {total.recall:.3f}, precision {total.precision:.3f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
