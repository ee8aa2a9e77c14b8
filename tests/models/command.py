"""The table's command line."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import date
from pathlib import Path

from tests.models.architectures import in_the_table
from tests.models.judge import Row, Status, judged
from tests.models.page import RESULTS, read_rows, write_page, write_rows
from tests.models.plans import COLUMNS


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if a plan that check accepts fails or differs."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    known = read_rows(options.results)
    names = in_the_table()
    for path in options.join:
        known |= read_rows(path)
    shard, of = options.shard
    chosen = [] if options.join else [*(options.only or names)][shard - 1 :: of]
    chosen = [one for one in chosen if not (options.missing and one in known)]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(
        options.jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_log_to,
        initargs=(options.log,),
    ) as pool:
        futures = {pool.submit(judged, one, names[one], columns=options.columns): one for one in chosen}
        for future in as_completed(futures):
            row = future.result()
            before = known[row.model_type].cells if row.model_type in known else {}
            cells = {one: cell for one in COLUMNS if (cell := row.cells.get(one, before.get(one)))}
            known[row.model_type] = replace(row, cells=cells)
            write_rows(known, options.results)
            print(_told(row), flush=True)
    rows = {one: known[one] for one in names if one in known}
    write_rows(rows, options.results)
    if options.page:
        write_page(rows, date=date.today().isoformat())
    print(f"{len(chosen)} architectures in {time.monotonic() - began:.0f} s")
    bad = (Status.FAILED, Status.DIFFERENT)
    return int(any(cell.status in bad for row in rows.values() for cell in row.cells.values()))


def _told(row: Row) -> str:
    cells = (
        cell.status.value if cell.status is not Status.REFUSED else ",".join(cell.codes)
        for cell in row.cells.values()
    )
    return f"{row.model_type:24} {'  '.join(f'{cell:10}' for cell in cells)}"


def _shard(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    return number, of


def _log_to(path: Path) -> None:
    """Turns this worker's output, and that of all its ranks, to a file."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.models.run", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="refresh these rows")
    parser.add_argument(
        "--columns", nargs="+", default=list(COLUMNS), choices=list(COLUMNS), help="refresh these columns"
    )
    parser.add_argument("--missing", action="store_true", help="leave the rows that are there")
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="K/N", help="every Nth row from the Kth"
    )
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="take the rows of these results")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--log", type=Path, default=Path("runs/models.log"))
    parser.add_argument("--no-page", dest="page", action="store_false", help="leave the page as it is")
    return parser
