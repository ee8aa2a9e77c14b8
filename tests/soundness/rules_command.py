"""The command line of the random rule sets."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tests.models.architectures import in_the_table
from tests.models.judge import Status
from tests.soundness.rules_judge import Found, fuzzed

_TOLD = (Status.EQUAL, Status.NOT_LOADED, Status.DIFFERENT, Status.FAILED, Status.UNKNOWN)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if an accepted rule set fails or differs."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    names = in_the_table()
    results = []
    for found in _results({one: names[one] for one in options.only or names}, options):
        print(told(found), flush=True)
        for one in found.faults:
            print(f"{found.model_type}: {one.cell.status}: {one.cell.detail}\n{one.plan}", flush=True)
        results.append(found)
    print(totals(results))
    print(f"{len(results)} architectures in {time.monotonic() - began:.0f} s, seed {options.seed}")
    return int(any(found.faults for found in results))


def _results(chosen: dict[str, str], options: argparse.Namespace) -> Iterator[Found]:
    with ProcessPoolExecutor(
        options.jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_log_to,
        initargs=(options.log,),
    ) as pool:
        judge = partial(fuzzed, num_sets=options.sets, seed=options.seed, pp=options.pp)
        yield from (
            one.result() for one in as_completed([pool.submit(judge, *pair) for pair in chosen.items()])
        )


def told(found: Found) -> str:
    """The line of an architecture."""
    if found.reason:
        return f"{found.model_type:24} nothing to train: {found.reason}"
    return f"{found.model_type:24} {totals([found])}"


def totals(results: Iterable[Found]) -> str:
    """How many rule sets were refused, meant the same as others, and trained to which end."""
    results = tuple(results)
    counts = [(str(status), sum(len(one.having(status)) for one in results)) for status in _TOLD]
    ends = [f"{count} {status}" for status, count in counts if count or status == Status.EQUAL]
    num_trained = sum(len(one.trained) for one in results)
    refused, alike = sum(one.num_refused for one in results), sum(one.num_alike for one in results)
    return f"{refused} refused, {alike} alike, {num_trained} trained: {', '.join(ends)}"


def _log_to(path: Path) -> None:
    """Turns this worker's output, and that of all its ranks, to a file."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.soundness.rules_fuzz", description="Trains with random rule sets that check accepts."
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="these architectures")
    parser.add_argument("--sets", type=int, default=20, help="rule sets drawn for each architecture")
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline, with two ranks of tp each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("runs/rules.log"))
    return parser
