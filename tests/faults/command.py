"""The matrix's command line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults import best, corpus_row, kills, nfs, power, resumes, runs, signals, wrong_numbers
from tests.faults.damage import exchange_row, flip_row
from tests.faults.folder_damage import folder_row
from tests.faults.outcome import Row
from tests.faults.page import write_page


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if a fault is not survived."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    rows: list[Row] = []
    with TemporaryDirectory(prefix="planc-faults-") as name:
        for campaign in options.only or CAMPAIGNS:
            folder = Path(name) / campaign
            folder.mkdir()
            for row in CAMPAIGNS[campaign](folder, options):
                rows.append(row)
                _tell(row)
    if options.page and not options.only:
        write_page(rows, date=date.today().isoformat(), seconds=time.monotonic() - began)
    print(f"{sum(len(row.injections) for row in rows)} faults in {time.monotonic() - began:.0f} s")
    return int(any(row.survived < len(row.injections) for row in rows))


def _tell(row: Row) -> None:
    numbers = f"rows {row.numbers}"
    print(
        f"{numbers:14} {len(row.injections):5} injected {row.survived:5} survived "
        f"{row.worst_seconds:6.1f} s worst  {row.fault}",
        flush=True,
    )
    for problem in row.problems():
        print(f"    {problem}", flush=True)


def _instants(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    for mode in ("sync", "async"):
        own = folder / mode
        yield from runs.instant_rows(own, stage=runs.prepare(own, mode=mode), num_instants=options.instants)


def _kills(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    scene = kills.prepare(folder)
    faults = tuple(kills.kill_faults(scene))
    return (kills.kill_row(folder, scene=scene, faults=faults, way=way) for way in kills.WAYS)


def _best(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return (best.best_row(folder / which, which=which) for which in best.LOSSES)


def _power(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    stage = runs.prepare(folder)
    yield from power.power_rows(folder, scene=kills.prepare(folder), num_samples=options.samples)
    yield power.run_row(folder / "run", plan=stage.plans[1], num_samples=options.samples // 20)


def _storage(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    scene = kills.prepare(folder)
    for way in kills.WAYS:
        yield kills.error_row(folder, scene=scene, faults=tuple(kills.error_faults(scene)), way=way)
    yield runs.refused_row(folder, stage=runs.prepare(folder / "waited"))
    behind = runs.prepare(folder / "behind", mode="async")
    yield runs.refused_row(folder, stage=behind, names=runs.REFUSALS_BEHIND)


def _damage(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return (flip_row(folder, num_flips=options.flips), exchange_row(folder))


def _folder(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return [folder_row(folder, stage=runs.prepare(folder / "stage"))]


def _resumes(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return resumes.resume_rows(folder)


def _signals(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return [signals.told_row(folder, stage=signals.prepare(folder))]


def _corpus(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return [corpus_row.corpus_row(folder)]


def _numbers(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return wrong_numbers.number_rows(folder)


def _ranks(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    return wrong_numbers.rank_rows(folder)


def _nfs(folder: Path, options: argparse.Namespace) -> Iterable[Row]:
    if nfs.COMPILER is None:
        print("nfs: left out, as there is no C compiler to make its driver", flush=True)
        return ()
    return nfs.campaign(folder / "runs", stage=runs.prepare(folder))


CAMPAIGNS: Mapping[str, Callable[[Path, argparse.Namespace], Iterable[Row]]] = {
    "instants": _instants,
    "kills": _kills,
    "best": _best,
    "power": _power,
    "storage": _storage,
    "damage": _damage,
    "corpus": _corpus,
    "folder": _folder,
    "resumes": _resumes,
    "numbers": _numbers,
    "ranks": _ranks,
    "signals": _signals,
    "nfs": _nfs,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.faults.run", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=CAMPAIGNS, help="these rows, and leave the page as it is"
    )
    parser.add_argument("--instants", type=int, default=50, help="at which one rank, and both, are killed")
    parser.add_argument("--flips", type=int, default=1000, help="of single bits")
    parser.add_argument("--samples", type=int, default=200, help="of each state that a power loss may leave")
    parser.add_argument("--no-page", dest="page", action="store_false", help="leave the page as it is")
    return parser
