"""Run plans in which every two features meet, as users start them: `python -m tests.runs [--rows N]`.

Tests of ranks go through a part of a run; what only a run has around it (clocks, the watch, traces, saves in
the background, a resume) met features by chance. Prints what fails, with the plan to see it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.runs.plans import plan_text, rows, world_size
from tests.runs.whole import Workspace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=None, help="at most so many runs")
    arguments = parser.parse_args()
    began = time.monotonic()
    num_runs = num_pairs = num_failed = 0
    with TemporaryDirectory(prefix="runs-") as folder:
        workspace = Workspace(Path(folder) / "workspace", Path("plans/models"))
        for row, num_new in islice(rows(workspace.accepts, seed=arguments.seed), arguments.rows):
            problem = workspace.problem(row)
            num_runs, num_pairs, num_failed = num_runs + 1, num_pairs + num_new, num_failed + bool(problem)
            if problem:
                print(f"{', '.join(row.values())}: {problem}\n{plan_text(row)}", flush=True)
            else:
                print(f"{world_size(row)} ranks, {num_new} new pairs: trains as one process", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{num_runs} runs, in which {num_pairs} pairs of features meet: {num_failed} failed, {seconds:.0f} s"
    )
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
