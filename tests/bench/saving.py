"""How long saves and loads of a checkpoint keep training: `python -m tests.bench.saving`, into SAVING.md.

One process without a process group holds a model and its AdamW of about 600 MB, in a temporary folder. Each
round saves it once while training waits, once with DCP's own writer, which hashes nothing, and once behind
training; loads it with planc, as a run that resumes, which hashes every byte; and loads the same tensors with
DCP's own reader from what DCP's own writer wrote, which verifies nothing. Rounds alternate, so a busy machine
slows all equally; medians count. Files are in the page cache, so loads are CPU-bound. Both are compared by
wall clock; CPU seconds, which others on a busy machine affect less, are reported too.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from planc.runtime.checkpoint_format.manifest import Progress
from planc.runtime.torch.checkpoint import BackgroundSaves, Destination, TrainingState, load, plan_save, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
from tests.bench.result import Result, report

PAGE = Path(__file__).parent / "SAVING.md"
NUM_LAYERS, WIDTH = 12, 2048
NUM_ROUNDS = 3
NUM_LOADS = 3
"""Of each kind, in a round."""
BLOCKED_GOAL = 0.05
LOAD_GOAL = 1.2
SAVE_GOAL = 1.1
MATMUL_WIDTH = 1024


_NOTES = """\
- Training waits for a copy of what its rank writes, into memory that later saves use again: nearly all of
  the wait is `a bare copy`. The first save also plans who writes what and touches the copies' memory for
  the first time.
- The rest is done by a thread: it writes, hashes, syncs and commits. `a step during a save` is how much
  CPU work slows down from it, on the CPUs of this machine.
- A verified load reads every byte once: a run that resumes copies values while it hashes them, with up to 4
  threads, and uses none before every rank has found every hash right. Nearly all of its CPU time is SHA-256.
- A save hashes each chunk in a second thread while it writes it. DCP's own save and load hash nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """Wall-clock seconds, and CPU seconds."""

    clock: float
    processor: float


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of each, of the clock alone where one number."""

    waited: Load
    plain: Load
    blocked: float
    behind: float
    copied: float
    loads: tuple[Load, ...]
    plain_loads: tuple[Load, ...]
    quiet_step: float
    busy_step: float


def build() -> TrainingState:
    """About 600 MB: weights, and as much twice for their moments."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))
    state = TrainingState(model, torch.optim.AdamW(model.parameters()))
    for tensor in named_tensors(state).values():
        # Fresh pages of zeros would cost a copy nothing.
        tensor.copy_(torch.rand(tensor.shape))
    return state


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def loaded(function: Callable[[], object]) -> Load:
    began = time.process_time()
    clock = timed(function)
    return Load(clock, time.process_time() - began)


class Bench:
    """A state, where it is saved, and the thread that saves it."""

    def __init__(self, folder: Path) -> None:
        self.state = build()
        self.folder = folder
        self.saves = BackgroundSaves(device=torch.device("cpu"), timeout_seconds=60.0)
        self.step = 0
        self.plan = plan_save(named_tensors(self.state), packings={})
        self.factor = torch.rand(MATMUL_WIDTH, MATMUL_WIDTH)

    def destination(self, name: str) -> Destination:
        self.step += 1
        progress = Progress(step=self.step, samples_consumed=0, seed=0, data_fingerprint="data", epoch=0)
        root = self.folder / name
        return Destination(
            root=root, progress=progress, plan_hash="plan", model_digest="model", mesh={}, keep_last=1
        )

    def train(self) -> None:
        """Work for the CPU, like a step."""
        for _ in range(4):
            torch.mm(self.factor, self.factor)

    def behind(self) -> tuple[float, float, list[float]]:
        """Seconds that training waited, that the save took, and of each step during it."""
        self.saves.start(self.state, to=self.destination("behind"))
        steps = []
        while not self.saves.has_ended():
            steps.append(timed(self.train))
        _, times = self.saves.join()
        return times.blocked_seconds, times.seconds, steps

    def copied(self) -> float:
        """Seconds of a bare copy of all tensors into memory that is there: the least that training waits."""
        tensors = named_tensors(self.state)
        copies = {name: torch.empty_like(tensor).copy_(tensor) for name, tensor in tensors.items()}
        return timed(lambda: [copies[name].copy_(tensor) for name, tensor in tensors.items()])

    def both_loads(self, directory: Path, plain: Path) -> tuple[Load, Load]:
        verified = loaded(lambda: load(self.state, directory=directory, in_place=True))
        tensors = named_tensors(self.state)
        return verified, loaded(lambda: dcp.load(tensors, checkpoint_id=plain, no_dist=True))

    def round(self, plain: Path) -> Round:
        quiet = [timed(self.train) for _ in range(10)]
        # To delete an older step is not part of a save, and DCP deletes none.
        to = replace(self.destination("waited"), keep_last=None)
        waited = loaded(lambda: save(self.state, to=to, plan=self.plan))
        other = self.folder / "plain-save"
        saved = loaded(lambda: dcp.save(named_tensors(self.state), checkpoint_id=other, no_dist=True))
        shutil.rmtree(other)
        blocked, behind, busy = self.behind()
        pairs = [self.both_loads(to.directory, plain) for _ in range(NUM_LOADS)]
        shutil.rmtree(to.directory)
        return Round(
            waited=waited,
            plain=saved,
            blocked=blocked,
            behind=behind,
            copied=self.copied(),
            loads=tuple(verified for verified, _ in pairs),
            plain_loads=tuple(bare for _, bare in pairs),
            quiet_step=median(quiet),
            busy_step=median(busy),
        )


def measure(folder: Path) -> tuple[list[Round], float, int]:
    """The rounds, the seconds that the first save behind training kept it, and the bytes of a checkpoint."""
    bench = Bench(folder)
    plain = folder / "plain"
    dcp.save(named_tensors(bench.state), checkpoint_id=plain, no_dist=True)
    first, _, _ = bench.behind()
    rounds = [bench.round(plain) for _ in range(NUM_ROUNDS)]
    shutil.rmtree(plain)
    return rounds, first, bench.saves.staged_bytes


def results(rounds: list[Round], *, first: float) -> list[Result]:
    def middle(name: str) -> float:
        return median(getattr(one, name) for one in rounds)

    share = median(one.blocked / one.waited.clock for one in rounds)
    verified = _middle([load for one in rounds for load in one.loads])
    bare = _middle([load for one in rounds for load in one.plain_loads])
    ratio, by_processor = verified.clock / bare.clock, verified.processor / bare.processor
    waited, plain = (_middle([getattr(one, name) for one in rounds]) for name in ("waited", "plain"))
    save_ratio = waited.clock / plain.clock
    slower = median(one.busy_step / one.quiet_step for one in rounds)
    return [
        Result("save, training waits", (_load_text(waited),)),
        Result("DCP's save", (_load_text(plain),)),
        Result(
            "ratio of saves, by the clock",
            (f"{save_ratio:.2f} x",),
            f"<= {SAVE_GOAL} x",
            save_ratio <= SAVE_GOAL,
        ),
        Result("save behind training", (f"{middle('behind'):.2f} s",)),
        Result("of that, training waited", (f"{middle('blocked'):.3f} s",)),
        Result("the first time", (f"{first:.3f} s",)),
        Result("a bare copy", (f"{middle('copied'):.3f} s",)),
        Result("its share of a save", (f"{share:.1%}",), f"< {BLOCKED_GOAL:.0%}", share < BLOCKED_GOAL),
        Result("a step during a save", (f"{slower:.2f} x",)),
        Result("verified load", (_load_text(verified),)),
        Result("DCP's load", (_load_text(bare),)),
        Result("ratio of loads, by the clock", (f"{ratio:.2f} x",), f"<= {LOAD_GOAL} x", ratio <= LOAD_GOAL),
        Result("ratio of loads, by CPU time", (f"{by_processor:.2f} x",)),
    ]


def _middle(loads: list[Load]) -> Load:
    return Load(median(one.clock for one in loads), median(one.processor for one in loads))


def _load_text(load: Load) -> str:
    return f"{load.clock:.2f} s, {load.processor:.2f} s of CPU time"


def write_page(found: list[Result], *, num_bytes: int) -> None:
    place = f"Python {platform.python_version()}, Linux {platform.release().partition('-')[0]}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "safetensors"))
    rows = "\n".join(f"| {one.name} | {one.cells[0]} | {one.goal} | {one.verdict} |" for one in found)
    PAGE.write_text(
        f"# Saving\n\n{date.today().isoformat()}, {versions}, {place}, "
        f"{torch.get_num_threads()} thread(s) of torch.\n\n"
        f"`python -m tests.bench.saving`: {num_bytes / 1e6:.0f} MB of tensors, one process, "
        f"medians of {NUM_ROUNDS} rounds. At its end {os.getloadavg()[0]:.1f} processes shared "
        f"{os.cpu_count()} CPUs.\n\n"
        f"| what | measured | goal | |\n|---|---|---|---|\n{rows}\n\n{_NOTES}\n",
        encoding="utf-8",
    )


def main() -> int:
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with TemporaryDirectory(prefix="planc-saving-") as name:
        rounds, first, num_bytes = measure(Path(name))
    found = results(rounds, first=first)
    for one in found:
        print(one)
    write_page(found, num_bytes=num_bytes)
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
