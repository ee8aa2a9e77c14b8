"""What one rank does or finds, known to every rank, its CheckpointError included.

Texts travel as byte tensors: nothing here pickles. Without a process group there is one rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from planc.runtime.checkpoints.errors import CheckpointError, CheckpointStorageError, CorruptCheckpointError

_ERRORS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (CheckpointError, CheckpointStorageError, CorruptCheckpointError)
}


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def from_coordinator(function: Callable[[], str], *, group: dist.ProcessGroup | None = None) -> str:
    """What `function` returns on rank 0, which alone calls it. All ranks raise its CheckpointError.

    `group` holds every rank; without one it is the group of training.
    """
    report = _attempt(function) if rank() == 0 else None
    return _results([_broadcast(report, group=group)])[0]


def require_on_all(check: Callable[[], None]) -> None:
    """Runs `check` on each rank. All ranks raise the CheckpointErrors of any."""

    def run() -> str:
        check()
        return ""

    _results(_gather(_attempt(run)))


def combined(failures: Mapping[int, CheckpointError]) -> CheckpointError:
    """One error of the lowest failing rank's kind; equal messages are said once, with their ranks."""
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


def _broadcast(text: str | None, *, group: dist.ProcessGroup | None) -> str:
    """The text that rank 0 gives, on every rank; the others give None."""
    if world_size() == 1:
        assert text is not None
        return text
    device = _device(group)
    length = torch.zeros(1, dtype=torch.int64, device=device)
    data = torch.empty(0, dtype=torch.uint8, device=device)
    if text is not None:
        data = _encode(text, device=device)
        length.fill_(data.numel())
    dist.broadcast(length, src=0, group=group)
    data.resize_(int(length))
    dist.broadcast(data, src=0, group=group)
    return _decode(data)


def _gather(text: str) -> list[str]:
    if world_size() == 1:
        return [text]
    data = _encode(text, device=_device())
    lengths = _gather_equal(torch.tensor([data.numel()], device=data.device))
    # A collective's tensors are of one length.
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=data.device)
    padded[: data.numel()] = data
    rows = _gather_equal(padded)
    return [_decode(row[: int(length)]) for row, length in zip(rows, lengths, strict=True)]


def _gather_equal(tensor: torch.Tensor) -> list[torch.Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(gathered, tensor)
    return gathered


def _encode(text: str, *, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)


def _device(group: dist.ProcessGroup | None = None) -> torch.device:
    # nccl moves CUDA tensors only.
    uses_nccl = dist.is_initialized() and dist.get_backend(group) == "nccl"
    return torch.device("cuda" if uses_nccl else "cpu")


def _decode(data: torch.Tensor) -> str:
    return data.cpu().numpy().tobytes().decode()
