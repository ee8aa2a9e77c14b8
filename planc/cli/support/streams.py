"""A run's output after its reader is gone, and as a signal ends the run."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO


def outlive_readers() -> None:
    """Make both output streams discard all writes after their first failed one.

    A run still saves and exits with its own code if its terminal is gone, if a signal ended its `tee`, or if
    the disk of its log is full.
    """
    for stream in (sys.stdout, sys.stderr):
        # None if it was closed when Python started.
        if stream is not None:
            _outlive_reader(stream)


def _outlive_reader(stream: TextIO) -> None:
    is_open = True

    def tolerant(function: Callable[..., Any], failed: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal is_open
            if is_open:
                try:
                    return function(*arguments)
                except OSError:
                    is_open = False
            return failed(*arguments)

        return call

    stream.write = tolerant(stream.write, len)  # type: ignore[method-assign]
    stream.flush = tolerant(stream.flush, lambda: None)  # type: ignore[method-assign]


def quiet_libraries(environment: MutableMapping[str, str]) -> None:
    """Keep PyTorch's C++ from printing warnings with stacks of its own; call it before torch is imported.

    The message about a lost rank would come after them.
    """
    if not environment.get("PLANC_DEBUG"):
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def show_crashes() -> None:
    """Have this process print the stacks of its threads if a signal such as SIGSEGV ends it.

    torchrun says only which signal it was.
    """
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
