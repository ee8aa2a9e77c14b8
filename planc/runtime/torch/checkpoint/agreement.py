"""Share what one rank does or finds with every rank, including its CheckpointError."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch.distributed as dist

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
)
from planc.runtime.torch.agreement.texts import broadcast, gather, rank

_ERRORS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (CheckpointError, CheckpointStorageError, CorruptCheckpointError)
}


def from_coordinator(function: Callable[[], str], *, group: dist.ProcessGroup | None = None) -> str:
    """The result of `function`, which only rank 0 calls. All ranks raise its CheckpointError.

    `group` contains every rank; the default is the group of training.
    """
    report = _attempt(function) if rank() == 0 else None
    return _results([broadcast(report, group=group)])[0]


def require_on_all(check: Callable[[], None]) -> None:
    """Runs `check` on each rank. All ranks raise the CheckpointErrors of any rank."""

    def run() -> str:
        check()
        return ""

    _results(gather(_attempt(run)))


def combined(failures: Mapping[int, CheckpointError]) -> CheckpointError:
    """One error of the lowest failing rank's kind; equal messages are listed once, with their ranks."""
    ranks_by_message: dict[str, list[int]] = {}
    for failing_rank, error in sorted(failures.items()):
        ranks_by_message.setdefault(error.message, []).append(failing_rank)
    lines = [f"{_who(ranks)}: {message}" for message, ranks in ranks_by_message.items()]
    first = failures[min(failures)]
    return type(first)("\n".join(lines), help=first.help)


def _who(ranks: list[int]) -> str:
    others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}{others}"


def _attempt(function: Callable[[], str]) -> str:
    try:
        return json.dumps({"result": function()})
    except CheckpointError as error:
        return json.dumps({"error": type(error).__name__, "message": error.message, "help": error.help})


def _results(reports: list[str]) -> list[str]:
    outcomes = [json.loads(report) for report in reports]
    failures = {
        failing_rank: _ERRORS[outcome["error"]](outcome["message"], help=outcome["help"])
        for failing_rank, outcome in enumerate(outcomes)
        if "error" in outcome
    }
    if failures:
        raise combined(failures)
    return [outcome["result"] for outcome in outcomes]
