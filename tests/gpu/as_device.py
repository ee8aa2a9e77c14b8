"""Make a run's metrics those of a device in name only: `python -m tests.gpu.as_device RUN_DIR SECONDS`.

`planc calibrate` refuses a run on CPUs, and steps that take longer than the device could, and it should. So
the logic after it can run without a GPU, this writes another kind of memory and `SECONDS` a step into the log
of a run on CPUs that only the step reads. No figure of it is ever published.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path, seconds: float) -> None:
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    changed = ({**line, "memory_kind": "allocated", "seconds": seconds} for line in lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in changed), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
