"""Power loss: every prefix of what a save does to its files, and what a disk may hold of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from pathlib import Path

from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import verify
from tests.faults.calls import Call
from tests.faults.disk import Disk, Image, write_image
from tests.faults.inject import Traced
from tests.faults.kills import NEW, OLD, Scene, trace
from tests.faults.outcome import Injection, Row
from tests.faults.runs import traced_run

Known = dict[int, dict[str, str]]
"""The SHA-256 of every file of a step, by its name."""


def in_order(traces: Iterable[Sequence[Traced]]) -> list[Call]:
    """The calls of all ranks as they were made."""
    return [one.call for one in merge(*traces, key=lambda one: one.nanoseconds)]


def crash_images(
    top: Path, calls: Sequence[Call], *, num_samples: int, every: int = 1
) -> Iterator[tuple[int, Image]]:
    """What may be left, after 0, 1, ... of the calls made beneath `top`, which is as it was before them.

    Of the numbers it takes `every`-th, and the last. What one number leaves twice is there once.
    """
    disk = Disk(top)
    for num_made in range(len(calls) + 1):
        if num_made:
            disk.make(calls[num_made - 1])
        if num_made % every and num_made < len(calls):
            continue
        seen = set()
        for image in disk.images(num_samples=num_samples, seed=num_made):
            digest = hash(tuple(sorted(image.items(), key=lambda one: one[0])))
            if digest not in seen:
                seen.add(digest)
                yield num_made, image


def power_rows(folder: Path, *, scene: Scene, num_samples: int) -> tuple[Row, ...]:
    """A save with an older step in place, and the very first save, into a folder that it makes."""
    return (
        Row(
            "4",
            "power loss after every call of a save with an older step in place",
            "a step or two, each whole; once the save has returned, the new one",
            tuple(_losses(folder / "second", source=scene.root, num_samples=num_samples)),
        ),
        Row(
            "4",
            "power loss after every call of the first save, which makes its folder",
            "no step, or a whole one; once the save has returned, that",
            tuple(_losses(folder / "first", source=None, num_samples=num_samples)),
        ),
    )


def run_row(folder: Path, *, plan: Path, num_samples: int, every: int = 1) -> Row:
    """The power fails after each `every`-th call of a run of one rank that makes its own folder."""
    folder = Path(os.path.realpath(folder))
    before, top = folder / "before", folder / "top"
    for one in (before, top):
        one.mkdir(parents=True)
    calls = [moved(call, old=top, new=before) for call in in_order([traced_run(plan, top / "runs" / "x")])]
    checkpoints = top / "runs" / "x" / "checkpoints"
    known = {
        step: file_digests(step_directory(checkpoints, step=step)) for step in committed_steps(checkpoints)
    }
    committed = [index for index, call in enumerate(calls, 1) if call.kind == "fsync directory"]
    injections = []
    for num_made, image in crash_images(before, calls, num_samples=num_samples, every=every):
        began = time.monotonic()
        write_image(image, folder / "replayed")
        root = folder / "replayed" / "runs" / "x" / "checkpoints"
        is_over = num_made >= committed[-1]
        problem = steps_problem(root, known=known, fewest=len(known) if is_over else 0)
        injections.append(_loss(num_made, calls, problem, began=began))
        shutil.rmtree(folder / "replayed")
    return Row(
        "4",
        "power loss after every call of a run of one rank, which makes its folder",
        "no step, or whole ones; once a save has returned, its step",
        tuple(injections),
    )


def _loss(num_made: int, calls: Sequence[Call], problem: str, *, began: float) -> Injection:
    last = f"{calls[num_made - 1].kind} {calls[num_made - 1].path}" if num_made else "none"
    return Injection(f"after call {num_made}, {last}", problem, time.monotonic() - began)


def _losses(folder: Path, *, source: Path | None, num_samples: int) -> Iterator[Injection]:
    before, top = (Path(os.path.realpath(folder)) / name for name in ("before", "top"))
    for one in (before, top):
        one.mkdir(parents=True)
        if source is not None:
            shutil.copytree(source, one / "checkpoints")
    traces = trace(_root(top), watched=top)
    calls = [moved(call, old=top, new=before) for call in in_order(traces)]
    known: Known = {NEW: file_digests(step_directory(_root(top), step=NEW))}
    if source is not None:
        known[OLD] = file_digests(step_directory(source, step=OLD))
    for num_made, image in crash_images(before, calls, num_samples=num_samples):
        began = time.monotonic()
        write_image(image, folder / "replayed")
        root = _root(folder / "replayed")
        problem = steps_problem(root, known=known, fewest=1 if source else 0)
        if not problem and num_made == len(calls) and NEW not in committed_steps(root):
            problem = f"step-{NEW} was saved, and is lost"
        yield _loss(num_made, calls, problem, began=began)
        shutil.rmtree(folder / "replayed")


def _root(top: Path) -> Path:
    """Where the checkpoints of a scene under `top` lie."""
    return top / "checkpoints" if (top / "checkpoints").exists() else top / "new" / "checkpoints"


def moved(call: Call, *, old: Path, new: Path) -> Call:
    def moved(path: str) -> str:
        return str(new / Path(path).relative_to(old)) if path else ""

    return Call(call.kind, moved(call.path), moved(call.target), call.data, call.offset)


def steps_problem(root: Path, *, known: Known, fewest: int) -> str:
    """Unless there are at least `fewest` committed steps, each of which verifies and is as it was saved."""
    steps = committed_steps(root)
    if len(steps) < fewest:
        return "no checkpoint is left"
    for step in steps:
        directory = step_directory(root, step=step)
        for problem in verify(directory):
            return f"{directory.name} is committed, but {problem}"
        if file_digests(directory) != known[step]:
            return f"{directory.name} is not as it was saved"
    return ""


def file_digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
