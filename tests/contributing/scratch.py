"""A scratch copy of planc, changed by a row of CONTRIBUTING's table alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import WAIT_SECONDS
from tests.plans import PLANS

ROOT = Path(__file__).parents[2]
MAX_PLACES = 3

PLAN = """\
model {
  hf = "models/tiny-llama"
}

data {
  source = text("data/*.txt")
  sequence_length = 64
  micro_batch = 2
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 3
}
"""
TEXT = "It was the best of times, it was the worst of times.\n" * 60


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one adds: files that are written, and texts of files that are replaced by others.

    `row` is the first cell of the table's row. `handler` files are one place, with their registration.
    """

    row: str
    files: dict[str, str] = field(default_factory=dict)
    edits: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def touched(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.files, *self.edits)))


def row_of(name: str) -> tuple[str, str]:
    """The cells of a row that say what to write, and where to register it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0].removeprefix("| ").strip() == name:
            return cells[1], cells[2]
    raise AssertionError(f"CONTRIBUTING.md has no row for {name}")


def unnamed(recipe: Recipe) -> list[str]:
    """The files that a recipe touches and its row does not name: `x.py`, SUBJECT and PART are any name."""
    found = re.findall(r"`((?:planc|docs)[\w/.]*)`", " ".join(row_of(recipe.row)))
    patterns = [re.sub(r"\bx\b|[A-Z]{2,}", "[^/]+", re.escape(one).replace(r"\.", r"\.")) for one in found]
    return [
        path
        for path in recipe.touched
        if not any(re.fullmatch(rf"{pattern}(/.*)?|{pattern}/__init__\.py", path) for pattern in patterns)
    ]


class Server:
    """The process of server.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        pipe = subprocess.PIPE
        program = str(Path(__file__).with_name("server.py"))
        self._process = subprocess.Popen(
            [sys.executable, program], env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def run(
        self, arguments: tuple[str, ...], root: Path, folder: Path, environment: dict[str, str]
    ) -> tuple[int, str]:
        """The exit code of a command of a copy, and what it has printed."""
        output = root / "output"
        order = {
            "arguments": arguments,
            "folder": str(folder),
            "root": str(root),
            "output": str(output),
            "environment": environment,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return code, output.read_text(encoding="utf-8")

    def close(self) -> None:
        with self._process:
            pass


@dataclass(frozen=True, slots=True)
class Scratch:
    """A copy of planc, and a folder of plans next to it."""

    root: Path
    server: Server

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    def apply(self, recipe: Recipe) -> None:
        for path, text in recipe.files.items():
            assert not (self.root / path).exists(), path
            (self.root / path).write_text(text, encoding="utf-8")
        for path, edits in recipe.edits.items():
            text = (self.root / path).read_text(encoding="utf-8")
            for old, new in edits:
                assert text.count(old) == 1, f"{path} has {text.count(old)} times: {old}"
                text = text.replace(old, new)
            (self.root / path).write_text(text, encoding="utf-8")

    def write(self, name: str, *edits: tuple[str, str]) -> str:
        """A plan with edits made to PLAN."""
        text = PLAN
        for old, new in edits:
            assert old in text, f"nothing to edit: {old}"
            text = text.replace(old, new)
        (self.plans / name).write_text(text, encoding="utf-8")
        return name

    def planc(self, *arguments: str, code: int = 0, ranks: int = 0) -> str:
        """The output of a command of the copy's own planc; with `ranks`, of a run under torchrun."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        if ranks:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            done = subprocess.run(
                [sys.executable, *launcher, "-m", "planc.run", *arguments],
                cwd=self.plans,
                env=environment,
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
            )
            found, output = done.returncode, done.stdout + done.stderr
        else:
            found, output = self.server.run(arguments, self.root, self.plans, environment)
        assert found == code, f"{' '.join(arguments)}: {found}\n{output}"
        return output

    def losses(self, plan: str, *, ranks: int = 0, name: str = "loss") -> list[float]:
        """Train with a plan; its losses, or another metric, step by step."""
        folder = f"runs-{plan.removesuffix('.plan')}"
        run = () if ranks else ("run",)
        self.planc(*run, plan, "--run-dir", folder, ranks=ranks)
        lines = (self.plans / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [one[name] for one in steps if name in one]


def scratch_copy(folder: Path, server: Server) -> Scratch:
    """A copy with its compiled modules; Python compiles again what a row changes."""
    for name in ("planc", "grammar"):
        shutil.copytree(ROOT / name, folder / name)
    plans = folder / "plans"
    (plans / "data").mkdir(parents=True)
    (plans / "data" / "a.txt").write_text(TEXT, encoding="utf-8")
    (plans / "models").symlink_to(PLANS / "models")
    return Scratch(folder, server)
