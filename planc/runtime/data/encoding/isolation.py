"""Restricts a library that loads a tokenizer's files, which come from anywhere, to reading those files.

It reaches no network and no cache of the user, starts no process, and unpickles nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_REFUSED = {
    "pickle.find_class": "unpickles objects",
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo", "socket.bind"), "reaches for the network"),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"), "starts a process"),
}
"""Audit events of Python that are refused, with the reason in words."""


def set_up(cache: Path) -> None:
    """Keep the libraries that are imported later offline, quiet, without torch and without caches.

    `cache` is a path where nothing is. Tokenizers need no torch, which takes seconds to import.
    """
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HOME": str(cache),
        "HF_MODULES_CACHE": str(cache),
        # Otherwise it keeps vocabularies by the path of their file, which may hold another one by now.
        "TIKTOKEN_CACHE_DIR": "",
    }
    sys.modules["torch"] = None  # type: ignore[assignment]


@contextmanager
def only_reading(folder: Path) -> Iterator[None]:
    """Refuse all but the reading of a directory's files, and of Python's own."""
    python = (sys.executable, sys.prefix, sys.base_prefix, *sys.path)
    roots = tuple(os.path.realpath(root) for root in (str(folder), *python))
    is_active = True

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_active:
            return
        if event in _REFUSED:
            raise PermissionError(f"it {_REFUSED[event]}")
        # A descriptor that is open already is an int.
        if event == "open" and not isinstance(arguments[0], int):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not any(path == root or path.startswith(root + os.sep) for root in roots):
                raise PermissionError(f"it reads {path}, which is not one of its files")

    sys.addaudithook(check)
    try:
        yield
    finally:
        # A hook stays as long as the process.
        is_active = False
