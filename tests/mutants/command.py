"""The harness's command line."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.campaign import TYPES, Workshop, campaign, mutants, shrunk_bases
from tests.mutants.report import HOLE, class_of, report, told, write_results
from tests.mutants.verdicts import VERDICTS


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if the deepest check accepts a bad mutant."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["PLANC_CACHE"] = str(options.out / "inventories")
    workshop = Workshop(options.out.resolve())
    found = mutants(workshop, shrunk_bases(), seed=options.seed, types=options.only or TYPES)
    depths = tuple(VERDICTS)[: tuple(VERDICTS).index(options.depth) + 1]
    results = campaign(
        found,
        depths=depths,
        limit=options.limit,
        jobs=options.jobs,
        log=options.out / "ranks.log",
        told=lambda result: print(told(result), flush=True),
    )
    write_results(results, options.out / "results.jsonl")
    print(report(results))
    seconds = time.monotonic() - began
    print(f"{len(results)} mutants, seed {options.seed}, {seconds:.0f} s with {options.jobs} jobs")
    return int(any(class_of(result, options.depth) == HOLE for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Judges mutated plans by planc's checks and by real runs.")
    parser.add_argument("--limit", type=int, default=1000, help="how many distinct mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=TYPES, metavar="TYPE", help=", ".join(TYPES))
    parser.add_argument("--depth", choices=VERDICTS, default="deep", help="how deeply planc checks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants judged at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"), help="folder for plans and results")
    return parser
