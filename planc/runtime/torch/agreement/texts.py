"""Send texts between ranks as byte tensors, without pickle. Without a process group there is one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist


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
