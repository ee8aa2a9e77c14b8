"""planc's commands, noting in the file AUDIT each class that is unpickled, and for whom: ranks or a file.

`unpickle FILE` is one more: it shows that the notes would tell.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

OUT = Path(os.environ["AUDIT"])
BETWEEN_RANKS = os.path.join("torch", "distributed", "distributed_c10d.py")
"""Where torch unpickles what its ranks send each other: they trust each other, and read no file there."""


def note(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook."""
    if event not in ("pickle.find_class", "marshal.loads.user"):
        return
    callers = []
    frame = sys._getframe(1)
    while frame is not None:
        callers.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    whose = "ranks" if any(BETWEEN_RANKS in caller for caller in callers) else "file"
    with OUT.open("a", encoding="utf-8") as out:
        out.write(f"{whose}: {arguments} {' '.join(callers[:3])}\n")


if __name__ == "__main__":
    sys.addaudithook(note)
    if sys.argv[1] == "unpickle":
        pickle.loads(Path(sys.argv[2]).read_bytes())
    else:
        from planc.cli.main import main

        sys.exit(main(sys.argv[1:]))
