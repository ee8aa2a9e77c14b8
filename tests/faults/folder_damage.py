"""Entries of a run's folder that are damaged or are something else: a run goes on, or says why not."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.outcome import Injection, Row
from tests.faults.runs import Stage, exactness_problem, require_done, run, said

SETTINGS = (
    *("--set", "logging.per_rank=true", "--set", "profile.first_step=4", "--set", "profile.last_step=4"),
)
REFUSALS = (2, 4, 7)
"""What a run that was not begun exits with: bad input, storage, a corrupt checkpoint."""
_BLOB = 70 * 2**20
"""Bytes of a line that is longer than any that a run writes."""


@dataclass(frozen=True, slots=True)
class Target:
    """An entry of a run's folder. What is not training state never stops a run."""

    name: str
    is_state: bool = False
    is_there: bool = True
    """Else it appears only by the damage."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A folder beside the run's, to which links lead, and what it holds at first."""

    folder: Path

    def problem(self) -> str:
        """Unless nothing of it has changed."""
        names = sorted(path.name for path in self.folder.iterdir())
        if names != ["file", "folder"] or list((self.folder / "folder").iterdir()):
            return f"a link was followed: outside the folder there are {names}"
        text = (self.folder / "file").read_text(encoding="utf-8")
        return "" if text == "outside" else "a link was followed, and what it leads to overwritten"


Damage = Callable[[Path, Outside], object]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _instead(make: Damage) -> Damage:
    def damage(path: Path, outside: Outside) -> None:
        _remove(path)
        path.parent.mkdir(exist_ok=True)
        make(path, outside)

    return damage


def _content(change: Callable[[bytes], bytes]) -> Damage:
    def damage(path: Path, outside: Outside) -> None:
        content = path.read_bytes() if path.is_file() else b'{"step": 1, "phase": {"a": 1}}\n'
        _remove(path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(change(content))

    return damage


def _cut_after_brace(content: bytes) -> bytes:
    return content[: content.rfind(b"}", 0, max(1, len(content) - 3)) + 1]


def _in_the_middle(more: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content[: len(content) // 2] + more + content[len(content) // 2 :]


def _bind(path: Path, outside: Outside) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        # The name of a socket has a hundred bytes at most.
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def _fill(path: Path, outside: Outside) -> None:
    path.mkdir()
    (path / "file").write_text("text")


def _grow(path: Path, outside: Outside) -> None:
    with path.open("wb") as stream:
        stream.truncate(2**42)


DAMAGES: Mapping[str, Damage] = {
    "lost": lambda path, outside: _remove(path),
    "emptied": _content(lambda content: b""),
    "cut in half": _content(lambda content: content[: len(content) // 2]),
    "cut after an inner brace": _content(_cut_after_brace),
    "with a byte that is not UTF-8": _content(_in_the_middle(b"\xff")),
    "with a page of zeros": _content(_in_the_middle(bytes(4096))),
    "with a list on a line": _content(_in_the_middle(b"\n[1]\n")),
    "nested deeply": _content(_in_the_middle(b'\n{"step":' + b"[" * 200_000 + b"\n")),
    "a line of 70 MiB": _content(lambda content: b"x" * _BLOB + b"\n" + content),
    "huge": _instead(_grow),
    "an empty directory": _instead(lambda path, outside: path.mkdir()),
    "a directory": _instead(_fill),
    "a named pipe": _instead(lambda path, outside: os.mkfifo(path)),
    "a socket": _instead(_bind),
    "a device": _instead(lambda path, outside: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))),
    "a dangling link": _instead(lambda path, outside: path.symlink_to(outside.folder / "new")),
    "a link to itself": _instead(lambda path, outside: path.symlink_to(path.name)),
    "a link to a file outside": _instead(lambda path, outside: path.symlink_to(outside.folder / "file")),
    "a link to a directory outside": _instead(
        lambda path, outside: path.symlink_to(outside.folder / "folder")
    ),
    "a link to /dev/zero": _instead(lambda path, outside: path.symlink_to("/dev/zero")),
}
"""By what becomes of an entry."""


def targets(run_folder: Path) -> tuple[Target, ...]:
    """Every entry of a run that has stopped after its second step, and those that it would make."""
    [plan] = (run_folder / "plans").iterdir()
    newest = "checkpoints/step-2"
    return (
        *map(Target, ("metrics.jsonl", "status.json", ".lock", "plan.json", f"plans/{plan.name}")),
        *map(Target, ("plans", "logs", "logs/rank-0.jsonl")),
        *(Target(name, is_there=False) for name in ("ranks", "ranks/rank-0", "profile")),
        Target("profile/step-4-rank-0.json.gz", is_there=False),
        *(Target(name, is_state=True) for name in ("checkpoints", newest)),
        *(
            Target(f"{newest}/{name}", is_state=True)
            for name in ("manifest.json", "plan.json", "rank-00000.safetensors")
        ),
        *(
            Target(f"checkpoints/{name}", is_state=True, is_there=False)
            for name in ("step-5", "step-3.tmp", "step-1.deleted.tmp")
        ),
    )


def prepare_begun(stage: Stage, run_folder: Path) -> Path:
    """A run that has stopped after its second step, with all that a plan can ask for in its folder."""
    more = (*SETTINGS, "--stop-after", "2")
    require_done(run(stage.plans[1], run_folder, world_size=1, more=more), run_folder)
    return run_folder


def damaged(folder: Path, *, stage: Stage, begun: Path, target: Target, damage: str) -> Injection:
    """What becomes of a run that goes on in a folder of which one entry is damaged."""
    run_folder, outside = folder / "damaged-run", Outside(folder / "outside")
    for path in (run_folder, outside.folder):
        _remove(path)
    shutil.copytree(begun, run_folder)
    (outside.folder / "folder").mkdir(parents=True)
    (outside.folder / "file").write_text("outside", encoding="utf-8")
    log = run_folder.with_name(f"{run_folder.name}.rank-0.log")
    _remove(log)
    DAMAGES[damage](run_folder / target.name, outside)
    began = time.monotonic()
    [ending] = run(stage.plans[1], run_folder, world_size=1, more=SETTINGS)
    seconds = time.monotonic() - began
    problem = outside.problem() or next(_problems(run_folder, stage, target, ending.code), "")
    return Injection(f"{target.name}: {damage}", problem, seconds)


def _problems(run_folder: Path, stage: Stage, target: Target, code: int | None) -> Iterator[str]:
    text = said(run_folder)
    if code is None:
        yield f"it hung: {text}"
    elif "Traceback" in text:
        yield f"a traceback: {text}"
    elif code == 0:
        yield from filter(None, [exactness_problem(run_folder, stage.undisturbed[1])])
    elif not target.is_state:
        yield f"exit {code}, though training needs nothing of it: {text}"
    elif code not in REFUSALS:
        yield f"exit {code}: {text}"
    elif target.name.rpartition("/")[2] not in text:
        yield f"refused without naming it: {text}"


def folder_row(folder: Path, *, stage: Stage, damages: Sequence[str] = tuple(DAMAGES), every: int = 1) -> Row:
    """Every damage of every entry, or each `every`-th of them."""
    begun = prepare_begun(stage, folder / "begun-run")
    cells = [(target, damage) for target in targets(begun) for damage in damages]
    found = (
        damaged(folder, stage=stage, begun=begun, target=target, damage=damage)
        for target, damage in cells[::every]
    )
    return Row(
        "101",
        "each entry of a run's folder lost, cut, spoiled, huge, or replaced by a directory, pipe, socket, "
        "device or link",
        "what is not training state is set aside and the run ends as an undisturbed one; else it is refused "
        "by name, or goes on from a sound step; no link is followed, nothing hangs",
        tuple(found),
    )
