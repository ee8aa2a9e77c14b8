"""Deaths in a save that keeps the best checkpoint: it is never lost, and no record names one that is gone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.best import KeepBest, best_steps
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.manifest import Evaluated
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.torch.checkpoint import Destination, save
from tests.faults.inject import Fault, Traced, inject
from tests.faults.judge import survivors_problem
from tests.faults.kills import Scene, kill_faults, named
from tests.faults.outcome import Injection, Row
from tests.faults.ranks import endings
from tests.faults.state import build, destination, fill

WORLD_SIZE = 2
BEST, WORSE, NEW, LATER = 1, 2, 3, 4
NAME, DATA = "held", "d" * 64
LOSSES: Mapping[str, Mapping[int, float]] = {
    "an old best": {BEST: 1.0, WORSE: 2.0, NEW: 3.0, LATER: 4.0},
    "a new best": {BEST: 2.0, WORSE: 3.0, NEW: 1.0, LATER: 4.0},
}
"""The loss of each step: the save of the third one keeps the first one, or itself."""


def best_problem(root: Path, losses: Mapping[int, float]) -> str:
    """Unless the best of all steps that were saved is whole, and is the best by what the manifests state."""
    steps = committed_steps(root)
    if not steps or not losses:
        return ""
    best = min((step for step in losses if step <= steps[-1]), key=lambda step: (losses[step], step))
    if best not in steps:
        return f"step-{best} has the lowest loss, and is gone: there are {list(steps)}"
    if problems := verify(step_directory(root, step=best)):
        return f"step-{best} has the lowest loss, and {problems[0]}"
    stated = best_steps([read_manifest(step_directory(root, step=step)) for step in steps])
    return "" if stated == {NAME: best} else f"the manifests state {stated}, but step-{best} is the best"


def best_destination(
    root: Path, *, step: int, losses: Mapping[int, float], world_size: int = WORLD_SIZE
) -> Destination:
    """`step-N`, which keeps itself and the best one."""
    to = destination(root, step=step, world_size=world_size, keep_last=1)
    evaluated = {NAME: Evaluated(data=DATA, step=step, loss=losses[step])}
    progress = to.progress.model_copy(update={"evaluated": evaluated})
    return replace(to, progress=progress, keep_best=(KeepBest(NAME, 1, DATA),))


def save_steps(rank: int, world_size: int, root: Path, losses: Mapping[int, float]) -> None:
    """A rank's part in the saves of the first two steps."""
    state = build(world_size=world_size)
    for step in (BEST, WORSE):
        fill(state, step=step)
        save(state, to=best_destination(root, step=step, losses=losses))


def save_best_traced(
    rank: int,
    world_size: int,
    root: Path,
    losses: Mapping[int, float],
    fault: Fault | None = None,
    bug: str = "",
) -> tuple[Traced, ...]:
    """A rank's part in the save of the third step, with a fault in it, or with a bug planted in planc."""
    if bug:
        PLANTED[bug]()
    state = build(world_size=world_size)
    fill(state, step=NEW)
    injector = inject(root, rank=rank, fault=fault)
    save(state, to=best_destination(root, step=NEW, losses=losses))
    return tuple(injector.traced)


def _forget() -> None:
    KeepBest.best = lambda self, manifests: ()  # type: ignore[method-assign]


def _keep_the_worst() -> None:
    real = KeepBest.best
    KeepBest.best = lambda self, manifests: real(replace(self, count=99), manifests)[-1:]  # type: ignore[method-assign]


def _prune_first() -> None:
    begin, prune = commit.begin, commit.prune

    def begin_pruned(root: Path, *, step: int, effort: BestEffort | None = None) -> Path:
        prune(root, keep_last=1)
        return begin(root, step=step, effort=effort)

    commit.begin = begin_pruned


PLANTED = {"forgets": _forget, "keeps the worst": _keep_the_worst, "prunes first": _prune_first}
"""Bugs that lose the best checkpoint, by name."""


def prepare(folder: Path, losses: Mapping[int, float]) -> Scene:
    """A folder with the first two steps, and the calls of an undisturbed save of the third."""
    root = folder / "scene"
    for ending in endings(save_steps, WORLD_SIZE, root, losses):
        assert ending.code == 0 and not ending.error, ending
    traced = endings(save_best_traced, WORLD_SIZE, Path(shutil.copytree(root, folder / "traced")), losses)
    for ending in traced:
        assert ending.code == 0 and not ending.error, ending
    return Scene(root, tuple(tuple(one.call for one in ending.value) for ending in traced))


def best_row(folder: Path, *, which: str, every: int = 1) -> Row:
    """Each `every`-th death, and the steps that are left."""
    losses = LOSSES[which]
    scene = prepare(folder, losses)
    injections = []
    for fault in tuple(kill_faults(scene))[::every]:
        root = scene.copy(folder / "killed")
        found = endings(save_best_traced, WORLD_SIZE, root, losses, fault)
        began = time.monotonic()
        problem = survivors_problem(found, killed=fault.rank) or best_problem(root, losses)
        problem = problem or _later_problem(root, losses)
        injections.append(Injection(named(fault, scene), problem, time.monotonic() - began))
    return Row(
        "3, 26, 27",
        f"SIGKILL at every call of a save that keeps {which} of an evaluation, on each of 2 ranks",
        "the step with the lowest loss verifies, and manifests state it; the next save leaves it and itself",
        tuple(injections),
    )


def _later_problem(root: Path, losses: Mapping[int, float]) -> str:
    """Unless a later save succeeds, and leaves nothing but itself and the best step."""
    state = build(world_size=1)
    fill(state, step=LATER)
    save(state, to=best_destination(root, step=LATER, losses=losses, world_size=1))
    best = min(step for step in committed_steps(root) if step != LATER)
    names = sorted(os.listdir(root))
    if names != [f"step-{best}", f"step-{LATER}"]:
        return f"after the next save there are {', '.join(names)}"
    return best_problem(root, {step: losses[step] for step in (BEST, WORSE, best, LATER)})
