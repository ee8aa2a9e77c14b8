"""`python -m tests.dist.killed_saves FOLDER COUNT`: kills a process amid its saves, COUNT times.

After each kill, the highest committed checkpoint is loaded: every number in it has to be that of its step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.torch.checkpoint import TrainingState, load, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
from tests.dist.checkpoint_state import SINGLE, build, destination, train_step

LONGEST_SECONDS = 0.2
"""Before a kill; several saves fit into it."""


def main(folder: Path, count: int) -> None:
    """Prints how many kills there were, how many cut a save off, and what was wrong after one."""
    torch.set_num_threads(1)
    state = build(SINGLE, seed=1)
    # Gives the optimizer its state. Forked children compute nothing: autograd's threads are not with them.
    train_step(state, seed=0)
    root = folder / "checkpoints"
    chance = random.Random(0)
    cut_off, wrong = 0, []
    for kill in range(count):
        before = max(committed_steps(root), default=0)
        child = os.fork()
        if child == 0:
            _save_on(state, root=root, step=before + 1)
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cut_off += any(root.glob("*.tmp"))
        after = max(committed_steps(root), default=0)
        if after < before:
            wrong.append(f"kill {kill}: step {before} is lost")
        elif after:
            wrong += [f"kill {kill}: {name}" for name in _misplaced(state, root=root, step=after)]
    print(json.dumps({"kills": count, "cut_off": cut_off, "last_step": after, "wrong": wrong}))


def _save_on(state: TrainingState, *, root: Path, step: int) -> None:
    """Saves step after step, every number being the step's, until the process is killed."""
    try:
        while True:
            with torch.no_grad():
                for tensor in named_tensors(state).values():
                    tensor.fill_(step)
            save(state, to=destination(root, step=step, keep_last=2))
            step += 1
    finally:
        # Only an error comes here; the parent's loop must not continue in the child.
        sys.stderr.flush()
        os._exit(1)


def _misplaced(state: TrainingState, *, root: Path, step: int) -> list[str]:
    """The tensors of a checkpoint that hold another number than its step."""
    load(state, directory=step_directory(root, step=step))
    return [name for name, tensor in named_tensors(state).items() if not bool((tensor == step).all())]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
