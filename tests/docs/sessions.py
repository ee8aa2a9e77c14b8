"""Runs the blocks of a page as a reader would: in order, in one folder, which looks like a checkout."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from planc.cli.main import main
from tests.docs.pages import ROOT, Block, Entry, entries
from tests.forked import Ended, run_forked
from tests.launch.processes import free_port
from tests.patience import WAIT_SECONDS

TIMEOUT_SECONDS = 2 * WAIT_SECONDS


def workspace(folder: Path) -> Path:
    """A folder with the checkout's plans and examples, in which commands may write.

    Plans and models are copied, since git must be able to add them; examples are large, and linked.
    """
    shutil.copytree(ROOT / "plans", folder / "plans")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def run(command: str, folder: Path) -> tuple[str, int]:
    """What a command prints on both streams, and its exit code.

    A plain `planc` command runs in this process, which has imported all that it needs. One that executes a
    model is forked from a process that has, and so are the ranks of a run that torchrun starts on this
    machine: tests/launch has torchrun itself. All else runs in bash.
    """
    words = [] if re.search(r"[|<>&;$*\\\n]", command) else shlex.split(command, comments=True)
    if words[:1] == ["planc"] and (words[1:2] == ["run"] or "--deep" in words):
        forked = run_forked(
            "planc",
            words[1:],
            environment=os.environ,
            folder=folder,
            is_merged=True,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        return forked.stdout, forked.code
    if words[:1] == ["planc"]:
        return _in_process(words[1:], folder)
    if words[:3] == ["torchrun", "--standalone", "--nproc-per-node"] and words[4:6] == ["-m", "planc.run"]:
        return _on_ranks(int(words[3]), words[6:], folder)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_SECONDS,
    )
    return done.stdout.decode(), done.returncode


def _on_ranks(num_ranks: int, arguments: list[str], folder: Path) -> tuple[str, int]:
    """What all ranks of a run print, rank 0 first, and torchrun's exit code."""
    world = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    world |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}

    def run_rank(rank: int) -> Ended:
        return run_forked(
            "planc.run",
            arguments,
            environment={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            folder=folder,
            is_merged=True,
            timeout_seconds=TIMEOUT_SECONDS,
        )

    with ThreadPoolExecutor(num_ranks) as threads:
        ended = list(threads.map(run_rank, range(num_ranks)))
    return "".join(one.stdout for one in ended), int(any(one.code for one in ended))


def _in_process(arguments: list[str], folder: Path) -> tuple[str, int]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with chdir(folder), redirect_stdout(stream), redirect_stderr(stream):
        code = main(arguments)
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(), code


def run_session(block: Block, folder: Path, *, is_updated: bool = False) -> str:
    """The session with what its commands print now, elided where the page elides.

    `exit=1` after `console` is the exit code of the last command; the others must succeed. What differs with
    planc's own files stays as the page shows it, unless the page is updated.
    """
    expected = int(block.rest.removeprefix("exit=") or 0)
    found = entries(block.text)
    text = ""
    for entry in found:
        printed, code = run(entry.command, folder)
        wanted = expected if entry is found[-1] else 0
        assert code == wanted, f"{block.place}: `{entry.command}` exits with {code}, not {wanted}:\n{printed}"
        text += f"$ {entry.command}\n{elided(entry, printed, is_updated=is_updated)}"
    return text


def elided(entry: Entry, printed: str, *, is_updated: bool = False) -> str:
    """`entry.shown` where it fits what was printed; else what was printed, with the same lines left out."""
    printed = trimmed(printed)
    if fits(entry.shown, printed, NOISE if is_updated else (*OF_THE_SOURCES, *NOISE)):
        return entry.shown
    lines, shown = printed.splitlines(), entry.shown.splitlines()
    if fits(entry.shown, printed):
        return "".join(f"{line}\n" for line in _refreshed(shown, lines))
    if "..." not in shown:
        return "".join(f"{_kept(line, shown)}\n" for line in lines)
    head, tail = shown.index("..."), len(shown) - 1 - shown[::-1].index("...")
    first, last = lines[:head], lines[len(lines) - (len(shown) - 1 - tail) :]
    return "".join(f"{_kept(line, shown)}\n" for line in (*first, "...", *last))


def trimmed(printed: str) -> str:
    """What was printed, without spaces at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip("\n").splitlines())


Patterns = tuple[tuple[str, str], ...]

OF_THE_SOURCES: Patterns = (
    # A commit's hash may be of digits alone.
    (r"\bcompared with [0-9a-f]{7}\b", "compared with HASH"),
    (r"\b[0-9a-f]{7,64}\b(?<![0-9]{7})", "HASH"),
    (r"\b(loss|grad_norm) +(\d+\.\d+|\d+e-\d+)( +\(step \d+\) -> \d+\.\d+)?", r"\1 NUMBER"),
)
"""What changes whenever planc's own files do: any value fits any other, until the page is updated."""
NOISE: Patterns = (
    (r"\b\d+\.\d+ s\b", "SECONDS"),
    (r"\b\d(\.\d+)?e-\d\d\b", "SMALL"),
    (r"\blocalhost:\d+", "localhost:PORT"),
    (r"[\d_]+ tokens/s +\S+ TFLOP/s/device +\S+ [KMG]iB process +left \S+", "SPEED"),
    (r"\bdata: .*", "data: TEXT"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
)
"""What differs from machine to machine: any value fits any other."""


def fits(shown: str, printed: str, patterns: Patterns = (*OF_THE_SOURCES, *NOISE)) -> bool:
    """Whether a text is what is shown: `...` stands for any text, alone on a line for any lines."""
    for pattern, name in patterns:
        shown, printed = re.sub(pattern, name, shown), re.sub(pattern, name, printed)
    pattern = re.sub(
        r"^\\\.\\\.\\\.\n", "(?:.*\n)*", re.escape(shown).replace("\\\n", "\n"), flags=re.MULTILINE
    )
    return re.fullmatch(pattern.replace(r"\.\.\.", ".*"), printed) is not None


def _refreshed(shown: list[str], lines: list[str]) -> Iterator[str]:
    """Each shown line as it was printed, in order; one that elides something stays."""
    rest = iter(lines)
    for one in shown:
        printed = one if one == "..." else next(line for line in rest if fits(one, line))
        yield one if "..." in one or fits(one, printed, NOISE) else printed


def _kept(line: str, shown: list[str]) -> str:
    """The shown line that fits, with its `...`; else the line itself."""
    return next((one for one in shown if one != "..." and "..." in one and fits(one, line)), line)
