"""Whether a folder of checkpoints that a fault has hit is what planc promises."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import verify
from planc.runtime.torch.checkpoint import load
from tests.faults.outcome import first_problem
from tests.faults.ranks import TIMEOUT_SECONDS, Ending
from tests.faults.state import Digests, build, digests, save_step
from tests.patience import is_within

PARTING_SECONDS = 5
"""The time that a rank may take beyond its timeout, to report it and to exit."""


def survivors_problem(endings: Sequence[Ending], *, killed: int) -> str:
    """Unless the killed rank alone died, and the others ended with an error in time."""
    return first_problem(_survivors_problems(endings, killed=killed))


def _survivors_problems(endings: Sequence[Ending], *, killed: int) -> Iterator[str]:
    for ending in endings:
        if ending.rank == killed:
            yield "" if ending.was_killed else f"rank {killed} was not killed, but ended with {ending.code}"
        elif ending.has_hung or not is_within(ending.seconds, TIMEOUT_SECONDS + PARTING_SECONDS):
            yield f"rank {ending.rank} still waited after {ending.seconds:.0f} s"
        elif ending.code != 0:
            yield f"rank {ending.rank} ended with {ending.code}"


def checkpoints_problem(root: Path, *, known: Mapping[int, Digests]) -> str:
    """Unless the newest committed step verifies, loads, and is exactly one of the `known` steps."""
    steps = committed_steps(root)
    if not steps:
        return "no checkpoint is left"
    newest = step_directory(root, step=steps[-1])
    for problem in verify(newest):
        return f"{newest.name} is committed, but {problem}"
    state = build(world_size=1)
    try:
        manifest = load(state, directory=newest)
    except CheckpointError as error:
        return f"{newest.name} verifies, but does not load: {error.message}"
    found = digests(state)
    same = [step for step, one in known.items() if one == found]
    if same != [manifest.step]:
        return f"{newest.name} holds the values of {f'steps {same}' if same else 'steps that nobody saved'}"
    return ""


def cleanup_problem(root: Path, *, step: int, known: Digests) -> str:
    """Unless a later save succeeds and leaves nothing but itself."""
    try:
        save_step(build(world_size=1), root=root, step=step, world_size=1, keep_last=1)
    except CheckpointError as error:
        return f"the next save fails: {error.message}"
    names = sorted(os.listdir(root))
    if names != [f"step-{step}"]:
        return f"after the next save there are {', '.join(names)}"
    return checkpoints_problem(root, known={step: known})
