"""A rank of a run that counts the messages it has in memory as it sends another."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.parity.ranks import Task, train_rank


def most_held(rank: int, world_size: int, task: Task) -> int:
    """The most sent tensors of one channel that were alive at once, with the one being sent."""
    sent: dict[str, list[weakref.ref[torch.UntypedStorage]]] = {}
    most = 0
    send = dist.isend

    def counted(tensor: Tensor, *arguments: Any, group: dist.ProcessGroup, **keywords: Any) -> Any:
        nonlocal most
        found = sent.setdefault(group.group_name, [])
        found.append(weakref.ref(tensor.untyped_storage()))
        most = max(most, sum(one() is not None for one in found))
        return send(tensor, *arguments, group=group, **keywords)

    dist.isend = counted
    try:
        train_rank(rank, world_size, task)
    finally:
        dist.isend = send
    return most
