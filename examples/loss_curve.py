"""Prints how far a run's loss has come; exits with 1 if it has not fallen by half.

python examples/loss_curve.py runs/quickstart
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LAST_STEPS = 10


def main() -> int:
    lines = (Path(sys.argv[1]) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    last = losses[-LAST_STEPS:]
    # One step's loss depends on its few sequences: several steps' mean says where training stands.
    mean = sum(last) / len(last)
    print(f"loss {losses[0]:.3f} at step 1, {mean:.3f} over the last {len(last)} of {len(losses)} steps")
    has_fallen = mean <= losses[0] / 2
    print("training works: the loss has fallen by half" if has_fallen else "the loss has not fallen by half")
    return 0 if has_fallen else 1


if __name__ == "__main__":
    sys.exit(main())
