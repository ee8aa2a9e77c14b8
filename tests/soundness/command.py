"""The command line of the soundness table."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.mutants.campaign import Mutant, Workshop, campaign
from tests.mutants.report import HOLE, class_of, report, told, write_results
from tests.mutants.verdicts import static
from tests.soundness.plans import RIGHT_PLANS, mutants_of


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if the static check accepts an edit that does not train as one process."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["PLANC_CACHE"] = str(options.out / "inventories")
    results = campaign(
        _chosen(options),
        depths=("static",),
        limit=options.limit,
        jobs=options.jobs,
        log=options.out / "ranks.log",
        told=lambda result: print(told(result), flush=True),
    )
    write_results(results, options.out / "results.jsonl")
    print(report(results))
    print(f"{len(results)} edits run, {time.monotonic() - began:.0f} s with {options.jobs} jobs")
    return int(any(class_of(result, "static") == HOLE for result in results))


def _chosen(options: argparse.Namespace) -> Iterator[Mutant]:
    """Every edit that is accepted, and a share of the others; how many there are, per plan."""
    workshop, random = Workshop(options.out.resolve()), Random(options.seed)
    for index, name in enumerate(options.plan or RIGHT_PLANS):
        plan = RIGHT_PLANS[name]
        accepted = rejected = 0
        edits = plan.edits(doubles=not options.single)
        for mutant in mutants_of(workshop, plan, edits, first=100_000 * index):
            is_accepted = not static(mutant.path)
            accepted, rejected = accepted + is_accepted, rejected + (not is_accepted)
            if is_accepted or random.random() < options.rejected:
                yield mutant
        print(f"{name}: {accepted} distinct edits accepted, {rejected} rejected", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Judges edits of right plans by checking and by running them."
    )
    parser.add_argument("--plan", action="append", choices=RIGHT_PLANS, help="one of the plans, not all")
    parser.add_argument("--single", action="store_true", help="leave out edits of two rules at once")
    parser.add_argument("--rejected", type=float, default=0.05, help="share of rejected edits that is run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=100_000, help="how many are run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="edits judged at a time")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/soundness"), help="folder for plans and results"
    )
    return parser
