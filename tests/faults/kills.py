"""SIGKILL at every change that a save makes to its files, on every rank: one that training waits for, and one
that a thread makes while training continues."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import torch

from planc.runtime.torch.checkpoint import BackgroundSaves
from tests.faults.calls import Call
from tests.faults.inject import Fault, How, Traced, inject
from tests.faults.judge import checkpoints_problem, cleanup_problem, survivors_problem
from tests.faults.outcome import Injection, Row, first_problem
from tests.faults.ranks import TIMEOUT_SECONDS, Ending, endings
from tests.faults.state import build, destination, expected, fill, save_step, saved_root

WORLD_SIZE = 2
OLD, NEW, LATER, TRAINED_ON = 1, 2, 3, 99
Way = Literal["waited", "behind"]
_SAVE: Mapping[Way, str] = {"waited": "a save", "behind": "a save behind training"}


@dataclass(frozen=True, slots=True)
class Scene:
    """A folder to copy before each save: a committed step, and what dead saves and deletions have left.

    `calls` are those of an undisturbed save of the next step, by rank, in order.
    """

    root: Path
    calls: tuple[tuple[Call, ...], ...]

    def copy(self, folder: Path) -> Path:
        """A fresh copy to save into."""
        shutil.rmtree(folder, ignore_errors=True)
        return Path(shutil.copytree(self.root, folder))


def prepare(folder: Path) -> Scene:
    """The scene, made by ranks in a folder."""
    root = saved_root(folder / "scene", steps=(OLD,))
    for name in ("step-0.deleted.tmp", f"step-{NEW}.tmp"):
        (root / name).mkdir()
        (root / name / "rank-00000.safetensors").write_bytes(b"half of a shard")
    traces = trace(Path(shutil.copytree(root, folder / "traced")))
    return Scene(root, tuple(tuple(one.call for one in rank) for rank in traces))


def trace(root: Path, *, watched: Path | None = None, way: Way = "waited") -> tuple[tuple[Traced, ...], ...]:
    """What each rank does to files beneath `root`, or `watched`, while they save the next step there."""
    found = endings(WAYS[way], WORLD_SIZE, root, None, watched)
    for ending in found:
        assert ending.code == 0 and not ending.error, ending
    return tuple(ending.value for ending in found)


def save_traced(
    rank: int, world_size: int, root: Path, fault: Fault | None, watched: Path | None = None
) -> tuple[Traced, ...]:
    """A rank's part in a save that keeps the newest step alone, with a fault in it."""
    state = build(world_size=world_size)
    injector = inject(watched or root, rank=rank, fault=fault)
    save_step(state, root=root, step=NEW, world_size=world_size, keep_last=1)
    return tuple(injector.traced)


def save_behind_traced(
    rank: int, world_size: int, root: Path, fault: Fault | None, watched: Path | None = None
) -> tuple[Traced, ...]:
    """As `save_traced`, while training changes what has been copied, and asks for the end again and again."""
    state = build(world_size=world_size)
    saves = BackgroundSaves(device=torch.device("cpu"), timeout_seconds=TIMEOUT_SECONDS)
    fill(state, step=NEW)
    injector = inject(watched or root, rank=rank, fault=fault)
    saves.start(state, to=destination(root, step=NEW, world_size=world_size, keep_last=1))
    # The optimizer's step waits for the copies, and then may change what they are of.
    state.optimizer.step()
    fill(state, step=TRAINED_ON)
    while not saves.has_ended():
        time.sleep(0.001)
    saves.join()
    return tuple(injector.traced)


WAYS: Mapping[Way, Callable[..., tuple[Traced, ...]]] = {
    "waited": save_traced,
    "behind": save_behind_traced,
}


def kill_faults(scene: Scene) -> Iterator[Fault]:
    """A death before every call of every rank, and half-way through every write."""
    for rank, calls in enumerate(scene.calls):
        for at, call in enumerate(calls, 1):
            yield Fault(rank, at, How.KILL)
            if call.kind == "write":
                yield Fault(rank, at, How.KILL_HALF)


def error_faults(scene: Scene) -> Iterator[Fault]:
    """EIO from every call of every rank; ENOSPC and EDQUOT from every call that takes room."""
    for rank, calls in enumerate(scene.calls):
        for at, call in enumerate(calls, 1):
            yield Fault(rank, at, How.ERROR, errno.EIO)
            if call.kind in ("create", "mkdir", "write", "fsync"):
                yield Fault(rank, at, How.ERROR, errno.ENOSPC)
                yield Fault(rank, at, How.ERROR, errno.EDQUOT)
            if call.kind == "create":
                yield Fault(rank, at, How.FULL)


def kill_row(folder: Path, *, scene: Scene, faults: Sequence[Fault], way: Way = "waited") -> Row:
    """Every death, and the step that is left."""
    known = {step: expected(step) for step in (OLD, NEW, LATER)}
    injections = []
    for fault in faults:
        root = scene.copy(folder / "killed")
        found = endings(WAYS[way], WORLD_SIZE, root, fault)
        ended = time.monotonic()
        problem = first_problem(
            (
                survivors_problem(found, killed=fault.rank),
                checkpoints_problem(root, known={OLD: known[OLD], NEW: known[NEW]}),
            )
        )
        seconds = time.monotonic() - ended + _parting_seconds(found, killed=fault.rank)
        problem = problem or cleanup_problem(root, step=LATER, known=known[LATER])
        injections.append(Injection(named(fault, scene), problem, seconds))
    return Row(
        "3, 26, 27",
        "SIGKILL at every mkdir, create, write, half write, fsync, rename, unlink and rmdir of "
        f"{_SAVE[way]} that prunes, on each of 2 ranks",
        "peers end with an error in time; the newest step verifies, loads, and is one step's; "
        "the next save clears up",
        tuple(injections),
    )


def error_row(folder: Path, *, scene: Scene, faults: Sequence[Fault], way: Way = "waited") -> Row:
    """Every refusal of the system, and the step that is left."""
    known = {step: expected(step) for step in (OLD, NEW, LATER)}
    injections = []
    for fault in faults:
        root = scene.copy(folder / "refused")
        began = time.monotonic()
        found = endings(WAYS[way], WORLD_SIZE, root, fault)
        ends = storage_problem if is_of_state(fault, scene) else success_problem
        problem = first_problem(
            (
                ends(found),
                checkpoints_problem(root, known={OLD: known[OLD], NEW: known[NEW]}),
                partial_problem(root, fault=fault, scene=scene),
                cleanup_problem(root, step=LATER, known=known[LATER]),
            )
        )
        injections.append(Injection(named(fault, scene), problem, time.monotonic() - began))
    return Row(
        "5, 6",
        f"EIO from every call of {_SAVE[way]} on each of 2 ranks; ENOSPC and EDQUOT from those that take "
        "room; each file on /dev/full",
        "a storage error on every rank (exit 4); the step before is whole, nothing of a partial one is left; "
        "a deletion that fails ends no save, nor does a directory that can be made at the second try",
        tuple(injections),
    )


def is_of_state(fault: Fault, scene: Scene) -> bool:
    """Whether the call writes a step: what deletes comes before and after it, and makes no difference."""
    calls = scene.calls[fault.rank]
    call = calls[fault.at - 1]
    committed = [at for at, one in enumerate(calls, 1) if one.target.endswith(f"step-{NEW}")]
    # The directory of all steps is synced after the commit, and again after deletions.
    is_over = bool(committed) and fault.at > committed[0] + 1
    is_hiding = call.kind == "rename" and fault.at not in committed
    return not (is_over or is_hiding or call.kind in ("unlink", "rmdir", "mkdir"))


def success_problem(found: Sequence[Ending]) -> str:
    """Unless the save has succeeded on every rank."""
    bad = [ending for ending in found if (ending.code, ending.error) != (0, "")]
    return "; ".join(f"rank {one.rank}: {one.error or one.code}: {one.message}" for one in bad)


def storage_problem(found: Sequence[Ending]) -> str:
    """Unless every rank has raised the same CheckpointStorageError."""
    for ending in found:
        if (ending.code, ending.error) != (0, "CheckpointStorageError"):
            said = f"{ending.error}: {ending.message}" if ending.error else f"exit {ending.code}"
            return f"rank {ending.rank} ended with {said}"
    if len({ending.message for ending in found}) > 1:
        return f"ranks say different things: {[ending.message for ending in found]}"
    return ""


def partial_problem(root: Path, *, fault: Fault, scene: Scene) -> str:
    """Unless nothing is left of a step that was refused before its commit.

    A failure of `begin`, which had yet to clear it, or of what clears, leaves the leftover of the dead save.
    """
    call = scene.calls[fault.rank][fault.at - 1]
    if call.kind in ("unlink", "rmdir", "mkdir"):
        return ""
    return f"step-{NEW}.tmp is left" if (root / f"step-{NEW}.tmp").exists() else ""


def named(fault: Fault, scene: Scene) -> str:
    """`SIGKILL before it: rank 0, 7: rename step-2.tmp step-2`."""
    call = scene.calls[fault.rank][fault.at - 1]
    root = os.path.dirname(os.path.commonpath([one.path for one in scene.calls[0]]) + "/x")
    paths = [os.path.relpath(path, root) for path in (call.path, call.target) if path]
    how = os.strerror(fault.errno) if fault.how is How.ERROR else fault.how.value
    return f"{how}: rank {fault.rank}, call {fault.at}, {call.kind} {' '.join(paths)}"


def spread(faults: Iterator[Fault], *, count: int) -> tuple[Fault, ...]:
    """About `count` of the faults, evenly spread over them all."""
    found = tuple(faults)
    return tuple(islice(found, 0, None, max(1, len(found) // count)))


def _parting_seconds(found: Sequence[Ending], *, killed: int) -> float:
    """How long the last rank has outlived the one that was killed."""
    return max(ending.seconds for ending in found) - found[killed].seconds
