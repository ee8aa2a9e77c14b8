"""The corpus of bad checkpoints as a row of the matrix."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from planc.runtime.checkpoint_format.layout import step_directory
from tests.faults.corpus import REFUSED, STEP, payload
from tests.faults.damage import refusal_problem
from tests.faults.outcome import Injection, Row
from tests.faults.state import saved_root


def corpus_row(folder: Path) -> Row:
    """Every bad checkpoint that is refused, and a pickle in place of each file of a sound one."""
    root = saved_root(folder / "sound", steps=(STEP,), world_size=3)
    marker = folder / "marker"
    damages = {name: damage for name, (damage, _) in REFUSED.items()}
    for path in step_directory(root, step=STEP).iterdir():
        damages[f"a pickle as {path.name}"] = _pickled(path.name)
    injections = []
    for name, damage in damages.items():
        directory = step_directory(Path(shutil.copytree(root, folder / "bad")), step=STEP)
        damage(directory, marker)
        began = time.monotonic()
        problem = refusal_problem(directory) or ("the payload has run" if marker.exists() else "")
        injections.append(Injection(name, problem, time.monotonic() - began))
        shutil.rmtree(folder / "bad")
    return Row(
        "9, 90-100",
        "checkpoints that are not, or not quite; a pickle in place of every file",
        "refused as damage (exit 7) before a tensor of the model has changed; no payload runs",
        tuple(injections),
    )


def _pickled(name: str) -> Callable[[Path, Path], None]:
    def damage(directory: Path, marker: Path) -> None:
        (directory / name).write_bytes(payload(marker))

    return damage
