"""Agreement of what ranks read for themselves: training continues only if all have read the same.

Each op that reads is followed by one reduction of a digest. Only if ranks differ are entries exchanged, and
every rank fails in the same way, with what differs, and where. Texts are JSON in CPU tensors, without pickle.
"""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.numerics import MAX_NAMED
from planc.runtime.ranks.reads import Deviation, Entry, describe, deviation, deviation_of, digest, majority
from planc.runtime.torch.run import Run
from planc.tables import plural


def rank() -> int:
    """This process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def broadcast(text: str | None, *, source: int = 0, group: dist.ProcessGroup | None = None) -> str:
    """The text that rank `source` gives, on every rank; the others may give None."""
    if world_size() == 1:
        assert text is not None
        return text
    device = _device(group)
    length = torch.zeros(1, dtype=torch.int64, device=device)
    data = torch.empty(0, dtype=torch.uint8, device=device)
    if rank() == source:
        assert text is not None
        data = _encode(text, device=device)
        length.fill_(data.numel())
    dist.broadcast(length, src=source, group=group)
    data.resize_(int(length))
    dist.broadcast(data, src=source, group=group)
    return _decode(data)


def gather(text: str, *, group: dist.ProcessGroup | None = None) -> list[str]:
    """Every rank's text, by rank in the group, on every rank."""
    if world_size() == 1:
        return [text]
    padded, lengths = _padded(text, group=group)
    rows = _gather_equal(padded, group=group)
    return [_decode(row[: int(length)]) for row, length in zip(rows, lengths, strict=True)]


def gather_on_first(text: str, *, group: dist.ProcessGroup | None = None) -> list[str]:
    """Every rank's text, by rank, on rank 0; an empty list on the others."""
    if world_size() == 1:
        return [text]
    padded, lengths = _padded(text, group=group)
    rows = [torch.empty_like(padded) for _ in lengths] if rank() == 0 else None
    dist.gather(padded, rows, dst=0, group=group)
    return [_decode(row[: int(length)]) for row, length in zip(rows or (), lengths, strict=False)]


def _padded(text: str, *, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A text in as many bytes as the longest rank's, since a collective's tensors have one length, and all
    lengths."""
    data = _encode(text, device=_device(group))
    lengths = _gather_equal(torch.tensor([data.numel()], device=data.device), group=group)
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=data.device)
    padded[: data.numel()] = data
    return padded, lengths


def _gather_equal(tensor: torch.Tensor, *, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor, group=group)
    return gathered


def _encode(text: str, *, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)


def _device(group: dist.ProcessGroup | None = None) -> torch.device:
    # nccl moves CUDA tensors only.
    uses_nccl = dist.is_initialized() and dist.get_backend(group) == "nccl"
    return torch.device("cuda" if uses_nccl else "cpu")


def _decode(data: torch.Tensor) -> str:
    return data.cpu().numpy().tobytes().decode()


P = ParamSpec("P")
T = TypeVar("T")

_WORDS = 4
"""Words of 8 bytes in a SHA-256."""


def agreed(handler: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """The handler of an op that reads, plus the check that all ranks read the same: else RunError on each.

    If the handler fails on some ranks only, all ranks raise a RunError that names them.
    """

    @functools.wraps(handler)
    def checked(run: Run, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        failure: RunError | None = None
        try:
            result = handler(run, *arguments, **keywords)
        except RunError as error:
            failure = error
        entries = run.reads.take()
        if run.launch.world_size > 1:
            _agree(run, entries, failure=failure)
        if failure is not None:
            raise failure
        return result

    return checked


def _agree(run: Run, entries: Sequence[Entry], *, failure: RunError | None) -> None:
    """RunError unless all ranks have equal entries and none failed, or all failed in the same way."""
    own = digest(entries)
    words = torch.from_numpy(np.frombuffer(bytes.fromhex(own), dtype="<i8").astype(np.int64))
    # The complement reverses the order and never overflows, so one reduction gives both extremes.
    ends = torch.cat((words, ~words, torch.tensor([failure is not None], dtype=torch.int64)))
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    if ends[-1].item():
        _refuse_failures(failure)
    elif not torch.equal(ends[:_WORDS], ~ends[_WORDS:-1]):
        raise _difference(run, entries, own=own)


def _refuse_failures(failure: RunError | None) -> None:
    """RunError that names the ranks that failed, unless all failed with the same message."""
    own: dict[str, Any] = {"host": socket.gethostname()}
    if failure is not None:
        own |= {"message": failure.message, "help": failure.help, "code": failure.code}
    gathered = [json.loads(text) for text in gather(json.dumps(own))]
    failed = [(rank, one) for rank, one in enumerate(gathered) if "message" in one]
    if len(failed) == len(gathered) and len({one["message"] for one in gathered}) == 1:
        return
    texts = [f"rank {rank} ({one['host']}): {one['message']}" for rank, one in failed[:MAX_NAMED]]
    more = [f"and {plural(len(failed) - MAX_NAMED, 'more rank')}"] if len(failed) > MAX_NAMED else []
    first = failed[0][1]
    raise RunError("; ".join([*texts, *more]), code=ExitCode(first["code"]), help=first["help"])


def _difference(run: Run, entries: Sequence[Entry], *, own: str) -> RunError:
    """The error that every rank raises if records differ."""
    source = majority(gather(own))
    mine = [[entry.kind, entry.name, entry.value] for entry in entries]
    expected = [Entry(*entry) for entry in json.loads(broadcast(json.dumps(mine), source=source))]
    found = deviation(run.launch.rank, socket.gethostname(), entries, expected)
    gathered = [deviation_of(json.loads(text)) for text in gather(json.dumps(found.data()))]
    return refusal(gathered, world_size=run.launch.world_size)


def refusal(deviations: Sequence[Deviation], *, world_size: int) -> RunError:
    """The error of a run whose ranks read differently, for the user and for status.json."""
    deviations = [one for one in deviations if one.differences]
    message, help = describe(deviations, world_size=world_size)
    return RunError(message, help=help, record={"differing": [one.data() for one in deviations]})
