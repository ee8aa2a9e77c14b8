"""Every command of planc with reasonable arguments, in a folder that `world` has made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.patience import WAIT_SECONDS
from tests.plans import PLANS, TINY, write_plan

ROOT = Path(__file__).parents[2]

NOTHING = frozenset[str]()
NUMPY = frozenset({"numpy"})
TORCH = frozenset({"torch", "safetensors"})
BOTH = frozenset({"torch", "transformers", "safetensors", "numpy"})
RANKS = BOTH | {"posix"}
"""What training needs: its libraries and a system for them."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, what it can't do without, and its exit code where it has that."""

    line: str
    needs: frozenset[str] = NOTHING
    code: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.line.split())


COMMANDS: tuple[Command, ...] = (
    Command("check x.plan"),
    Command("check bad.plan", code=1),
    Command("check --output-format json x.plan"),
    Command("check --output-format sarif bad.plan", code=1),
    Command("check --fix fixed.plan"),
    Command("check fresh.plan", needs=BOTH),
    Command("check --deep x.plan", needs=BOTH),
    Command("fmt --check x.plan", code=1),
    Command("fmt --diff x.plan", code=1),
    Command("fmt formatted.plan"),
    Command("show x.plan"),
    *(Command(f"show x.plan --{view}") for view in ("resolved", "layout", "memory", "collectives", "mesh")),
    Command("show x.plan --origin"),
    Command("show x.plan --graph mermaid"),
    Command("estimate x.plan --gpu h100"),
    Command("calibrate x.plan gpu-run --gpu h100 --machine here -o calibration.json"),
    Command("diff x.plan y.plan"),
    Command("diff git:main:x.plan x.plan"),
    Command("diff run y.plan"),
    Command("diff run/checkpoints/step-3 x.plan"),
    Command("diff x.plan y.plan --output-format markdown"),
    Command("diff x.plan y.plan --output-format json"),
    Command("review main"),
    Command("review main --output-format github"),
    Command("compile x.plan -o out/x.json"),
    Command("explain"),
    Command("explain P402"),
    Command("explain tensor_parallel"),
    Command("inventory models/tiny-llama"),
    Command("inventory models/cached --output-format json"),
    Command("inventory models/cached --save"),
    Command("inventory models/fresh", needs=BOTH),
    Command("inventory models/fresh --save", needs=BOTH),
    Command("inventory hf://org/name@" + "0" * 40, needs=frozenset({"network"})),
    *(Command(f"schema {one}") for one in ("artifact", "diagnostics", "diff", "doctor")),
    Command("git-setup --print"),
    Command("git-setup"),
    *(Command(f"completions {shell}") for shell in ("bash", "zsh", "fish")),
    Command("doctor"),
    Command("doctor --output-format json"),
    # A machine that cannot run a plan is a finding.
    Command("doctor x.plan --run-dir run"),
    Command("verify x.plan", needs=RANKS),
    Command("checkpoint ls run"),
    Command("checkpoint ls run --output-format json"),
    Command("checkpoint verify run"),
    Command("checkpoint diff run/checkpoints/step-3 run/checkpoints/step-6"),
    Command("checkpoint diff run/checkpoints/step-3 run/checkpoints/step-6 --values", needs=TORCH),
    Command("checkpoint export run --hf out/hf --model models/tiny-llama", needs=BOTH),
    Command("checkpoint convert run --dcp out/dcp", needs=TORCH),
    Command("checkpoint convert dcp --planc out/planc --unpickle", needs=TORCH | {"numpy", "posix"}),
    Command("data prepare x.plan", needs=NUMPY),
    Command("data prepare large.plan --to out/data", needs=NUMPY),
    Command("data ls out/data", needs=NUMPY),
    Command("data verify out/data", needs=NUMPY),
    Command("launch x.plan --nodes 1"),
    Command("launch pair.plan --nodes 1 --form accelerate"),
    Command("launch pair.plan --nodes 1 --form slurm --cpus-per-node 8"),
    Command("launch pair.plan --nodes 1 --form kubernetes --image registry/train:1 --cpus-per-node 8"),
    Command("run --help"),
    Command("run x.plan --run-dir out/run", needs=RANKS | {"tokenizers"}),
)

TEXT = (
    TINY.replace("param size: int = 2\n\n", "")
    .replace("size\n", "1\n")
    .replace("tp = 2", "tp = 1")
    .replace("steps = 10", "steps = 6")
    + "\ncheckpoint {\n  save_every = 3 steps\n}\n"
)
"""A plan of one process, which saves twice. It is not laid out as `fmt` would."""


PAIR = (
    TINY.replace("param size: int = 2\n\n", "")
    .replace("size\n", "1\n")
    .replace("  tp = 2", "  tp = 2\n  backend = gloo")
)
"""A plan of two processes that saves nothing."""


def world(folder: Path) -> Path:
    """A repository with plans, models, a run and a checkpoint in plain DCP, all of them made here."""
    folder.mkdir()
    models = folder / "models"
    shutil.copytree(PLANS / "models" / "tiny-llama", models / "tiny-llama")
    for name in ("cached", "fresh"):
        models.joinpath(name).mkdir()
        config = (PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8")
        more = config.rstrip().removesuffix("}") + f', "note": "{name}"}}\n'
        (models / name / "config.json").write_text(more, encoding="utf-8")
    (folder / "data").mkdir()
    (folder / "large").mkdir()
    (folder / "large" / "words.txt").write_bytes(b"more bytes than stay in memory\n" * (1 << 21))
    (folder / "data" / "words.txt").write_text("naïve words, and more words. " * 200, encoding="utf-8")
    changed = TEXT.replace("steps = 6", "steps  = 6")
    for name, text in {
        "x.plan": changed,
        "y.plan": TEXT.replace("1e-3", "2e-3"),
        "bad.plan": TEXT.replace("micro_batch", "micro_bach"),
        "fixed.plan": TEXT.replace("micro_batch", "micro_bach"),
        "formatted.plan": changed,
        "pair.plan": PAIR,
        "large.plan": TEXT.replace("data/*", "large/*"),
        "fresh.plan": TEXT.replace("models/tiny-llama", "models/fresh"),
    }.items():
        write_plan(folder, name=name, text=f"# “plan” → ≤ 1 rank\n{text}")
    for arguments in (("init", "-q", "-b", "main"), ("add", "x.plan", "y.plan"), ("commit", "-qm", "plans")):
        _git(folder, *arguments)
    write_plan(folder, name="y.plan", text=TEXT.replace("1e-3", "3e-3"))
    for line in (
        "run x.plan --run-dir run",
        "checkpoint convert run --dcp dcp",
        "inventory models/cached",
    ):
        done = subprocess.run(
            [sys.executable, "-m", "planc", *line.split()],
            cwd=folder,
            capture_output=True,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr.decode()
    _as_of_gpus(folder / "run", folder / "gpu-run")
    (folder / "out").mkdir()
    return folder


def _as_of_gpus(run: Path, copy: Path) -> None:
    """A copy of a run on CPUs with metrics that only GPUs log, of steps as fast as theirs."""
    shutil.copytree(run, copy)
    metrics = copy / "metrics.jsonl"
    logged = metrics.read_text(encoding="utf-8")
    assert '"process"' in logged, "the run logs the memory of processes"
    as_fast = re.sub(r'"seconds": ?[0-9.e-]+', '"seconds": 0.004', logged)
    metrics.write_text(as_fast.replace('"process"', '"allocated"'), encoding="utf-8", newline="\n")


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, timeout=WAIT_SECONDS)
