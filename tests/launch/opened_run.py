"""`planc.run`, which notes every file that Python opens before step 1, and what ranks would agree on.

OPENED names the JSON file that both go into.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_opened: dict[str, None] = {}
_is_noting = True


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _is_noting and isinstance(arguments[0], str | bytes | os.PathLike):
        mode, flags = arguments[1], arguments[2]
        is_read = (mode is None and not flags & (os.O_WRONLY | os.O_RDWR)) or (
            isinstance(mode, str) and not set(mode) & set("wax+")
        )
        if is_read:
            _opened[os.path.realpath(os.fsdecode(arguments[0]))] = None


sys.addaudithook(_note)

from planc.cli.commands.run import main  # noqa: E402
from planc.graph.op import Op  # noqa: E402
from planc.runtime.interpreter import Position  # noqa: E402
from planc.runtime.ranks.reads import Entry, Reads  # noqa: E402
from planc.runtime.torch.backend import TorchBackend  # noqa: E402

_entries: list[Entry] = []
_take = Reads.take
_execute = TorchBackend.execute


def take(self: Reads) -> tuple[Entry, ...]:
    taken = _take(self)
    _entries.extend(taken)
    return taken


def execute(self: TorchBackend, op: Op, position: Position) -> None:
    global _is_noting
    if position.step == 1 and _is_noting:
        _is_noting = False
        entries = [[one.kind, one.name, one.value] for one in _entries]
        found = {"opened": list(_opened), "entries": entries}
        Path(os.environ["OPENED"]).write_text(json.dumps(found), encoding="utf-8")
    _execute(self, op, position)


if __name__ == "__main__":
    Reads.take = take  # type: ignore[method-assign]
    TorchBackend.execute = execute  # type: ignore[method-assign]
    main()
