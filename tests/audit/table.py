"""Prints the audits' points: `python -m tests.audit.table`, or with `--run` after running their tests."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence

import pytest

from tests.audit.points import Point, is_there, points

WIDTH = 110


def lines(point: Point) -> Iterator[str]:
    """A point's row: what was done, what else of its class was found, the tests that show it."""
    missing = [test for test in point.tests if not is_there(test)]
    state = "TEST MISSING" if missing else "open in part" if point.open else "done"
    yield f"{point.audit:>6} {point.number:>8}  {point.title} [{state}]"
    for name, text in (("done", point.done), ("class", point.others), ("open", point.open)):
        if text:
            indented = " " * 17
            yield from textwrap.wrap(
                text,
                WIDTH,
                initial_indent=f"{name:>15}  ",
                subsequent_indent=indented,
                break_on_hyphens=False,
            )
    for test in point.tests:
        yield f"{'test':>15}  {test}{'  MISSING' if test in missing else ''}"


def main(arguments: Sequence[str]) -> int:
    """Prints the table; with --run the result is that of the tests which it names."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit.table", description=__doc__)
    parser.add_argument(
        "--run", action="store_true", help="run every test that the table names, slow ones too"
    )
    run = parser.parse_args(arguments).run
    rows = points()
    result = 0
    if run:
        tests = dict.fromkeys(test for point in rows for test in point.tests)
        result = int(pytest.main([*tests, "-m", "slow or not slow"]))
    for point in rows:
        print(*lines(point), "", sep="\n")
    done = sum(not point.open for point in rows)
    print(f"{len(rows)} points: {done} done, {len(rows) - done} open in part")
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
