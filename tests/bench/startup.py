"""Prints how long `planc check` takes, beside what it must not cost: ratios within one run."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPEATS = 7
LIMIT = 0.25

CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
    "planc check quickstart.plan": [sys.executable, "-m", "planc", "check", "plans/quickstart.plan"],
    "planc check llama-3.1-405b.plan": [sys.executable, "-m", "planc", "check", "plans/llama-3.1-405b.plan"],
}


def seconds(command: list[str]) -> float:
    """The fastest of several runs: the others measure the machine's noise."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    # As pip does with a wheel's modules, torch's among them; an editable install, or an environment that
    # forbids it (PYTHONDONTWRITEBYTECODE), would have Python compile planc anew in every process.
    compileall.compile_dir(ROOT / "planc", quiet=1)
    measured = {name: seconds(command) for name, command in CASES.items()}
    for name, value in measured.items():
        print(f"{name:<34} {value * 1000:7.0f} ms")
    ratio = measured["planc check llama-3.1-405b.plan"] / measured['python -c "import torch"']
    print(f"405B check / import torch          {ratio:7.3f}    (goal: at most {LIMIT})")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
