"""A fake process group of any size in one process, as seen by one of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from planc.runtime.rehearsal.private import FakeStore, clear_redistribute_cache, clear_sharding_cache


@contextmanager
def fake_world(rank: int, *, world_size: int) -> Iterator[None]:
    """Makes this process rank `rank` of `world_size`: collectives send nothing and return at once.

    ValueError inside a real process group, which the rehearsal would replace.
    """
    if dist.is_initialized():
        raise ValueError("a rehearsal needs a process of its own: a process group exists already")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        clear_sharding_cache()
        clear_redistribute_cache()
        dist.destroy_process_group()
