"""Signals as a program that a person starts has them.

Under nohup SIGHUP is ignored, after a script's `&` SIGINT and SIGQUIT; children inherit that. A test that
sends a signal to a process must not depend on who has started the tests.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)


def reset() -> None:
    """Give each signal that this process inherited as ignored its default action; for a `preexec_fn` too."""
    for number in _INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


@contextmanager
def ignored() -> Iterator[None]:
    """As under `nohup make test &` in a script: children are started with these signals ignored."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _INHERITED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
