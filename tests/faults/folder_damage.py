"""Entries of a run directory that are damaged or of another kind: a run continues, or reports why not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.entry_damage import DAMAGES, Outside, remove
from tests.faults.outcome import Injection, Row
from tests.faults.runs import Stage, exactness_problem, require_done, run, said

SETTINGS = (
    *("--set", "logging.per_rank=true", "--set", "profile.first_step=4", "--set", "profile.last_step=4"),
)
REFUSALS = (2, 4, 7)
"""What a run that was not begun exits with: bad input, storage, a corrupt checkpoint."""


@dataclass(frozen=True, slots=True)
class Target:
    """An entry of a run directory. Entries other than training state never stop a run."""

    name: str
    is_state: bool = False
    is_there: bool = True
    """Else it appears only by the damage."""


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
            for name in ("manifest.json", "plan.json", "rank-00000.json", "rank-00000.safetensors")
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
    """The outcome of a run that resumes in a directory with one damaged entry."""
    run_folder, outside = folder / "damaged-run", Outside(folder / "outside")
    for path in (run_folder, run_folder.with_name(f"{run_folder.name}.rank-0.log")):
        remove(path)
    shutil.copytree(begun, run_folder)
    outside.make()
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
        "entries other than training state are set aside and the run ends as an undisturbed one; others are "
        "refused by name, or the run resumes from a sound step; no link is followed, nothing hangs",
        tuple(found),
    )
