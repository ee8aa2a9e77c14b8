"""Prints each case with its answer; exits with 1 if one is wrong."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.data.cases.table import CASES


def main() -> int:
    num_wrong = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            problem = case.problem(Path(folder))
        num_wrong += problem is not None
        print(f"{'right' if problem is None else 'WRONG'}  {case.name}", flush=True)
        if problem is not None:
            print(f"       {problem}")
    print(f"{len(CASES)} cases, {num_wrong} wrong")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
