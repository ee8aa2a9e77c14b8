"""`planc run`."""

from __future__ import annotations

from argparse import Namespace

from planc.run import DESCRIPTION, EPILOG, add_arguments, leave, run_command

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]


def run(arguments: Namespace) -> int:
    """A run's exit code; see `planc.run`."""
    return leave(run_command(arguments))
