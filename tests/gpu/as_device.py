"""Make a run's metrics those of a device in name only: `python -m tests.gpu.as_device RUN_DIR`.

`planc calibrate` refuses a run on CPUs, and it should. So the logic after it can run without a GPU, this
changes the kind of memory in a copy of the log that only the step reads; no figure of it is ever published.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"memory_kind": "process"', '"memory_kind": "allocated"'), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
