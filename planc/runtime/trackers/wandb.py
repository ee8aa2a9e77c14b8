"""A run of Weights & Biases, in the run directory or on its server."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from planc.graph.ops import Tracker
from planc.runtime.files import plain_files
from planc.runtime.files.run_files import PLAN_NAME, WANDB_ID
from planc.runtime.trackers.tracker import Open, Opening

_ID = re.compile(rb"[0-9a-f]{12}")


class WandbTracker:
    """One W&B run, with the compiled plan. A new run gets a new id; a resumed run keeps its id."""

    def __init__(self, opening: Opening, *, options: Tracker) -> None:
        # Otherwise W&B would log into the working directory, and send its own errors to its vendor.
        os.environ.setdefault("WANDB_DIR", str(opening.run_folder))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Part of `planc[wandb]`: no other run needs it.
        import wandb

        self.run: Any = wandb.init(
            project=options.project or opening.plan_name,
            entity=options.entity,
            name=options.name or opening.plan_name,
            mode=options.mode,
            dir=str(opening.run_folder),
            id=_run_id(opening),
            resume="allow",
            config={"plan": opening.plan_name, "plan_hash": opening.plan_hash, "mesh": dict(opening.mesh)},
            # The plan decides what is sent; code, console and environment stay here.
            settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )

        plan = opening.run_folder / PLAN_NAME
        if plain_files.kind_of(plan) == "file":
            self.run.save(str(plan), base_path=str(opening.run_folder), policy="now")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.run.log(dict(values), step=step)

    def finish(self, *, is_done: bool) -> None:
        self.run.finish(exit_code=0 if is_done else 1)


def wandb_opener(options: Tracker) -> Open:
    """The opener of W&B with a plan's options."""
    return partial(WandbTracker, options=options)


def _run_id(opening: Opening) -> str:
    """The id in the run directory; a new one if training starts from its first step, or if it is damaged."""
    path: Path = opening.run_folder / WANDB_ID
    if opening.first_step > 1 and (kept := _kept_id(path)):
        return kept
    made = uuid.uuid4().hex[:12]
    plain_files.replace(path, (made.encode(),))
    return made


def _kept_id(path: Path) -> str | None:
    try:
        kept = plain_files.read_bytes(path, max_bytes=100)
    except OSError:
        return None
    return kept.decode() if _ID.fullmatch(kept) else None
