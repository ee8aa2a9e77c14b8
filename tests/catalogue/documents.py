"""The source documents, row by row: what each asks, whether planc does it, and what shows it.

`python -m tests.catalogue.documents` prints DOCUMENTS.md.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tests.catalogue.declared import HERE, exists, plans

_SECTIONS = {
    1: "Environment and packages",
    18: "Credentials and variables",
    30: "Launch forms",
    40: "Process group and mesh",
    50: "Model and tensor parallelism",
    59: "Data parallelism",
    69: "Data",
    80: "Context parallelism",
    91: "Gradients",
    97: "Optimizer and logging",
    104: "Checkpoints",
    112: "Automatic tensor parallelism",
    150: "Error messages",
    159: "Compatibility and promises",
}
"""By the first row of each."""

_HEAD = """\
# The source documents

What the four documents that planc started from ask of a run, in their order. This page is made of
`documents.tsv` (`python -m tests.catalogue.documents`); a test compares it, and looks for every test and
every command that it names. Tests are named without `tests/` and `test_`.

- `done`: the tests beside it run and show it. *Italic* ones are in the long suites (`make test-slow`).
- `in part`: what is missing is said.
- `refused`: planc does not have it, and says so of a plan that asks for it.
- `not done`: nothing shows it. Rows marked [GPU] take NVIDIA hardware, and have not been run on any.
"""


class State(StrEnum):
    """What has become of a row."""

    DONE = "done"
    PART = "in part"
    REFUSED = "refused"
    OPEN = "not done"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `documents.tsv`. A test is named without `tests/` and `test_`."""

    number: int
    asked: str
    state: State
    commands: tuple[str, ...]
    tests: tuple[str, ...]
    note: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Tests that are named and not there."""
        return tuple(test for test in self.tests if not (_is_there(test) or is_slow(test)))


@cache
def rows() -> tuple[Row, ...]:
    with (HERE / "documents.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(
                int(row["row"]),
                row["asked"],
                State(row["state"]),
                _several(row["command"]),
                _several(row["tests"]),
                row["note"],
            )
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        )


def page() -> str:
    """The text of DOCUMENTS.md."""
    return "\n".join(_lines()) + "\n"


def is_slow(test: str) -> bool:
    """Whether a test is there and runs in the long suites."""
    return exists(_whole(test), slow=True)


def _lines() -> Iterator[str]:
    yield _HEAD
    counts = Counter(row.state for row in rows())
    yield f"{len(rows())} rows: " + ", ".join(f"{counts[state]} {state}" for state in State) + "."
    for row in rows():
        if row.number in _SECTIONS:
            yield ""
            yield f"## {_SECTIONS[row.number]}"
            yield ""
            yield "| row | asked | | shown by | |"
            yield "|---|---|---|---|---|"
        shown = [f"`{command}`" for command in row.commands] + [_shown(test) for test in row.tests]
        yield f"| {row.number} | {row.asked} | {row.state} | {'<br>'.join(shown) or '-'} | {row.note} |"


def _shown(test: str) -> str:
    return f"*{test}*" if is_slow(test) else test


def _is_there(test: str) -> bool:
    """Whether a test runs in the plain suite. Plans of the catalogue are cases by their file."""
    name, _, case = test.removesuffix("]").partition("[")
    if name.endswith("::plan_has_its_findings"):
        return exists(_whole(name)) and case in {plan.path.stem for plan in plans("rules")}
    return exists(_whole(test))


def _whole(test: str) -> str:
    path, _, function = test.partition("::")
    return f"tests/{path}::test_{function}"


def _several(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(";") if one.strip())


if __name__ == "__main__":
    print(page(), end="")
