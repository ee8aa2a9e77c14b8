"""The server from which tests fork ranks and commands: it imports what nearly all of them would import."""

from __future__ import annotations

PRELOADED = ("pytest", "planc.api", "planc.cli.main", "planc.cli.running.session", "planc.verify.ranks")
"""Modules that a rank of a test's own function, or a command, takes 0.8 s to import."""


def start_server() -> None:
    """Start the server, unless it runs; return before its imports are done."""
    # Lazy: it imports torch, which those who import this module may lack.
    from planc.verify import pool

    pool.PRELOADED.extend(name for name in PRELOADED if name not in pool.PRELOADED)
    pool.start_server()
