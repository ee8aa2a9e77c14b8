"""The matrix as a page."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.faults.outcome import Row

PAGE = Path(__file__).parent / "FAULTS.md"

_INTRODUCTION = """\
What runs and their checkpoints survive. Every fault is injected into real processes and files, on gloo and
CPUs; `make faults` runs them all and writes this page.

- *survived*: the promise was kept. Anything less is listed below the table.
- *worst*: the longest from a fault to a checkpoint loaded again, or to the refusal where nothing may be
  loaded; for killed runs it is the whole rest of the run, started again.
- Kills and errors hit every mkdir, create, write, fsync, rename, unlink and rmdir of a save, by their
  number: a plugin of the tests counts them below Python's buffers. Writes are also cut in half.
- Power loss is replayed: the calls of all ranks are recorded, and after each of them every extreme and a
  random sample of the possible contents of a disk is written into a fresh folder. The model: unsynced data
  may be there, absent, zeros or cut; a name changes for sure once its folder is fsynced, before that each
  change for itself may be lost; the fsync of a file does not keep its name. That is meaner than ext4 or
  xfs. Without any one of a save's fsyncs the replay finds a loss (`tests/faults/test_power.py`).
- Ranks pickle what they send each other through torch, and trust each other. Audit hooks show that saves,
  resumes and exports unpickle nothing from a file (`tests/faults/test_unpickling.py`).
- EIO, ENOSPC and EDQUOT at single calls are raised by the plugin; full devices are /dev/full, limits are
  real.
- NFS is a library that is preloaded into every rank and answers for the C library (`tests/faults/nfs.c`).
- Numbers go wrong (rows 10, 11, 19) inside the ops of real runs on two ranks: a loss or a weight is spoiled,
  a bit flipped, on one of them. Ranks that skip, sleep, starve or cannot read (rows 13, 17, 18, 25) are
  processes whose ops a plugin of the tests wraps; limits of memory are RLIMIT_AS.

A save behind training (`checkpoint.mode = async`) is one whose copy a thread writes while training continues:
row 26 is its death before the commit. `tests/faults/test_kills.py` shows that it makes the very calls of a
save that training waits for, so the replayed power losses (row 4) hold for both.

Not covered: several machines, a real server of NFS, and GPUs; a folder that others may write into, whose
files are only as safe as their hashes, which whoever edits a file can renew."""


def write_page(rows: Sequence[Row], *, date: str, seconds: float) -> None:
    """The page of these rows, measured at `date` on this machine with the versions that are installed."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "safetensors"))
    place = f"Python {platform.python_version()}, Linux {platform.release().partition('-')[0]}"
    total = sum(len(row.injections) for row in rows)
    survived = sum(row.survived for row in rows)
    sections = [
        f"# Faults\n\n{date}, {versions}, {place}.",
        f"{survived} of {total} faults survived, in {seconds:.0f} s.",
        _INTRODUCTION,
        _table(rows),
    ]
    problems = [f"- {row.fault}: {problem}" for row in rows for problem in row.problems()]
    if problems:
        sections.append("## Not survived\n\n" + "\n".join(problems))
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _table(rows: Sequence[Row]) -> str:
    lines = ["| row | fault | promise | injected | survived | worst |", "|---|---|---|---|---|---|"]
    for row in rows:
        counts = f"{len(row.injections)} | {row.survived} | {row.worst_seconds:.2f} s"
        lines.append(f"| {row.numbers} | {row.fault} | {row.promise} | {counts} |")
    return "\n".join(lines)
