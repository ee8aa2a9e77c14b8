"""A run of an hour that meets a random fault every few minutes: it ends with the very weights of one without.

`python -m tests.soak.soak --minutes 60 --faults 20` first makes the run that nothing disturbs, equally long.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.plans import QUICKSTART, write_plan
from tests.soak.injections import INJECTIONS
from tests.soak.launches import Launch, Run
from tests.soak.page import Hit, Soaked, write_page

SAVE_SECONDS = 6.0
"""How much training is between two saves, about."""
TOKENS_PER_STEP = 8192
PLAN, UNDISTURBED = "soak.plan", "undisturbed"
_TRIAL_STEPS = 8
_MOST_LAUNCHES_A_FAULT = 3


@dataclass(slots=True)
class Soak:
    """A run under way, over all its launches."""

    run: Run
    num_steps: int
    step_seconds: float
    chance: random.Random
    waiting: list[str]
    """Faults to come."""
    hits: list[Hit] = field(default_factory=list)
    num_launches: int = 0

    def launch(self) -> Launch:
        self.num_launches += 1
        return Launch(self.run, log=self.run.folder.with_name(f"launch-{self.num_launches}.log"))

    def pause(self) -> float:
        """Seconds of training until the next fault, so all of them come before the run's end."""
        lines = self.run.metrics()
        left = self.num_steps - (lines[-1]["step"] if lines else 0)
        return self.chance.uniform(0.4, 1.2) * left * self.step_seconds / (len(self.waiting) + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every promise was kept."""
    options = _parser().parse_args(arguments)
    with TemporaryDirectory(prefix="planc-soak-") as name:
        folder, seconds = Path(name), 60 * options.minutes
        if options.undisturbed:
            reference = taken(folder, options.undisturbed, num_ranks=options.ranks)
        else:
            reference = made(folder, seconds=seconds, num_ranks=options.ranks)
        found = soak(folder, reference, num_faults=options.faults, seed=options.seed)
    print(found.summary())
    if options.page:
        write_page(found, options=options)
    return int(any(found.problems()))


@dataclass(frozen=True, slots=True)
class Reference:
    """The run that nothing disturbs, as far as its last checkpoint."""

    run: Run
    num_steps: int
    save_every: int
    step_seconds: float

    def training_seconds(self) -> float:
        return sum(line["seconds"] for line in self.run.metrics() if line["step"] <= self.num_steps)


def soak(folder: Path, reference: Reference, *, num_faults: int, seed: int) -> Soaked:
    """What became of a run like the reference under so many faults."""
    chance = random.Random(seed)
    waiting = _order(num_faults, chance)
    num_steps, step_seconds = reference.num_steps, reference.step_seconds
    run = Run(reference.run.plan, folder / "run", reference.run.num_ranks, stop_after=num_steps)
    soaking = Soak(run, num_steps, step_seconds, chance, waiting)
    began = time.monotonic()
    _run_to_the_end(soaking, most_launches=_MOST_LAUNCHES_A_FAULT * (num_faults + 2))
    wall = time.monotonic() - began
    return Soaked(
        hits=tuple(soaking.hits),
        num_missed=len(soaking.waiting),
        num_steps=num_steps,
        save_every=reference.save_every,
        useful_seconds=sum(line["seconds"] for line in run.metrics()),
        wall_seconds=wall,
        undisturbed_seconds=reference.training_seconds(),
        digest=_digest(run, step=num_steps),
        wanted=_digest(reference.run, step=num_steps),
    )


def made(folder: Path, *, seconds: float, num_ranks: int) -> Reference:
    """Trains for about so long, undisturbed."""
    step_seconds = _trial(folder / "trial", num_ranks=num_ranks)
    num_steps = max(2 * _TRIAL_STEPS, round(seconds * 0.9 / step_seconds))
    save_every = max(1, round(SAVE_SECONDS / step_seconds))
    plan = _plan(folder, num_steps=num_steps, save_every=save_every, num_ranks=num_ranks)
    run = Run(plan, folder / UNDISTURBED, num_ranks)
    _tell(f"{num_steps} steps of {step_seconds:.2f} s, a save every {save_every}; first undisturbed")
    _complete(run, log=folder / "undisturbed.log")
    return Reference(run, num_steps, save_every, step_seconds)


def taken(folder: Path, earlier: Path, *, num_ranks: int) -> Reference:
    """An earlier undisturbed run, under the plan next to it, as far as it has come."""
    text = (earlier / PLAN).read_text(encoding="utf-8")
    run = Run(write_plan(folder, name=PLAN, text=text), earlier / UNDISTURBED, num_ranks)
    (save_every,) = re.findall(r"save_every = ([0-9]+) steps", text)
    num_steps = max(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))
    _tell(f"{num_steps} steps, a save every {save_every}")
    return Reference(
        run, num_steps, int(save_every), median(line["seconds"] for line in run.metrics()[-100:])
    )


def _run_to_the_end(soaking: Soak, *, most_launches: int) -> None:
    since: Hit | None = None
    while soaking.num_launches < most_launches:
        launch = soaking.launch()
        if launch.wait_until(launch.trains) and since is not None:
            since.recovered(launch.said())
            since = None
        if soaking.waiting and launch.agent.poll() is None:
            pause = soaking.pause()
            launch.wait_until(lambda: False, seconds=pause)
        is_hit = bool(soaking.waiting) and launch.agent.poll() is None
        if is_hit:
            since = _inject(soaking, launch)
        else:
            launch.agent.wait()
        if soaking.run.is_complete:
            return
        if not is_hit:
            since = Hit("none of ours", _last_step(soaking.run), problem=launch.said()[-2000:])
            soaking.hits.append(since)


def _inject(soaking: Soak, launch: Launch) -> Hit:
    name = soaking.waiting.pop(0)
    hit = Hit(name, _last_step(soaking.run))
    soaking.hits.append(hit)
    hit.problem = INJECTIONS[name](launch, soaking.chance)
    _tell(f"step {hit.step}: {name}" + (f": {hit.problem}" if hit.problem else ""))
    return hit


def _order(num_faults: int, chance: random.Random) -> list[str]:
    """Every kind about equally often, in random order."""
    rounds = -(-num_faults // len(INJECTIONS))
    drawn = [name for _ in range(rounds) for name in chance.sample(list(INJECTIONS), len(INJECTIONS))]
    return drawn[:num_faults]


def _trial(folder: Path, *, num_ranks: int) -> float:
    """Seconds a step takes here."""
    folder.mkdir()
    plan = _plan(folder, num_steps=_TRIAL_STEPS, save_every=_TRIAL_STEPS, num_ranks=num_ranks)
    run = Run(plan, folder / "run", num_ranks)
    _complete(run, log=folder / "run.log")
    found = median(line["seconds"] for line in run.metrics()[2:])
    shutil.rmtree(folder)
    return float(found)


def _plan(folder: Path, *, num_steps: int, save_every: int, num_ranks: int) -> Path:
    """The quickstart, fully sharded over the ranks, without its export and its expectations."""
    text, _, _ = QUICKSTART.read_text(encoding="utf-8").partition("expect {")
    before, _, after = text.partition("tensor_parallel on tp {")
    edits = (
        ("  dp_shard = 2\n  tp = 2\n", f"  dp_shard = {num_ranks}\n  timeout = 10 s\n"),
        ("save_every = 60 steps", f"save_every = {save_every} steps"),
        ("  keep_last = 2\n", "  keep_last = 4\n  mode = async\n"),
        ('  export "hf" { when = end, dtype = bfloat16 }\n', ""),
        ("warmup = 10 steps", "warmup = 2 steps"),
        ("  steps = 120", f"  steps = {num_steps}"),
        ("tokens_per_step = 4096", f"tokens_per_step = {TOKENS_PER_STEP}"),
    )
    return write_plan(folder, name=PLAN, text=before + after.partition("}\n\n")[2], edits=edits)


def _complete(run: Run, *, log: Path) -> None:
    launch = Launch(run, log=log)
    launch.agent.wait()
    assert run.is_complete, launch.said()[-3000:]


def _last_step(run: Run) -> int:
    lines = run.metrics()
    return int(lines[-1]["step"]) if lines else 0


def _digest(run: Run, *, step: int) -> str:
    """Of all files of a step: weights, moments. Empty without such a step."""
    directory = step_directory(run.checkpoints, step=step)
    if not directory.is_dir():
        return ""
    parts = [part.sha256 for part in read_manifest(directory).parts if part is not None]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.soak.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="that the run without faults takes, about")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--undisturbed",
        type=Path,
        metavar="FOLDER",
        help="of a plan and a run of it that nothing disturbed, however that saved: no other is made, "
        "whatever --minutes says",
    )
    parser.add_argument("--no-page", dest="page", action="store_false", help="leave SOAK.md as it is")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
