"""Share what one rank does or finds with every rank, including its CheckpointError."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping

import torch.distributed as dist

from planc.runtime.checkpoint_format.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
)
from planc.runtime.errors import STOPS
from planc.runtime.torch.agreement.agree import broadcast, gather, gather_on_first, rank

_ERRORS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (CheckpointError, CheckpointStorageError, CorruptCheckpointError)
}

_MAX_TRACEBACK = 4000


def from_coordinator(function: Callable[[], str], *, group: dist.ProcessGroup | None = None) -> str:
    """The result of `function`, which only rank 0 calls. All ranks raise its CheckpointError.

    `group` contains every rank; the default is the group of training.
    """
    report = _attempt(function) if rank() == 0 else None
    return _results([broadcast(report, group=group)])[0]


def through_coordinator(
    part: Callable[[], str], whole: Callable[[list[str]], str], *, group: dist.ProcessGroup | None = None
) -> str:
    """The result of `whole`, which only rank 0 calls, with the results of `part` by rank.

    All ranks raise the CheckpointErrors of any rank.
    """
    reports = gather_on_first(_attempt(part), group=group)
    if rank() != 0:
        return _one_result(broadcast(None, group=group))
    try:
        results = _results(reports)
    except (CheckpointError, RuntimeError) as error:
        broadcast(_failure(error, is_combined=True), group=group)
        raise
    return _one_result(broadcast(_attempt(lambda: whole(results)), group=group))


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
    # Other errors too: a rank that raised alone would leave the others waiting.
    except STOPS:
        raise
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException, *, is_combined: bool = False) -> str:
    report: dict[str, object]
    if isinstance(error, CheckpointError):
        report = {"error": type(error).__name__, "message": error.message, "help": error.help}
    else:
        text = str(error) if is_combined else "".join(traceback.format_exception(error))
        report = {"error": None, "message": text[-_MAX_TRACEBACK:], "help": ""}
    return json.dumps({**report, "is_combined": is_combined})


def _one_result(report: str) -> str:
    outcome = json.loads(report)
    if outcome.get("is_combined"):
        raise _error(outcome)
    return _results([report])[0]


def _results(reports: list[str]) -> list[str]:
    outcomes = [json.loads(report) for report in reports]
    failures = {rank: _error(outcome) for rank, outcome in enumerate(outcomes) if "error" in outcome}
    known = {rank: error for rank, error in failures.items() if isinstance(error, CheckpointError)}
    if len(known) < len(failures):
        raise RuntimeError("\n".join(f"rank {rank}: {error}" for rank, error in failures.items()))
    if known:
        raise combined(known)
    return [outcome["result"] for outcome in outcomes]


def _error(outcome: Mapping[str, str]) -> CheckpointError | RuntimeError:
    kind = _ERRORS.get(outcome["error"])
    return kind(outcome["message"], help=outcome["help"]) if kind else RuntimeError(outcome["message"])
