"""The rank pool of `planc verify`, for tests."""

from collections.abc import Callable
from typing import Any, TypeVar

from planc.verify import pool
from planc.verify.pool import RankError
from tests.patience import WAIT_SECONDS
from tests.preloaded import start_server

__all__ = ["RankError", "run_ranks", "start_server"]

T = TypeVar("T")


def run_ranks(
    function: Callable[..., T],
    world_size: int,
    *arguments: Any,
    timeout_seconds: float = WAIT_SECONDS,
    **options: Any,
) -> list[T]:
    """As `planc verify` runs ranks, with the patience of tests."""
    start_server()
    return pool.run_ranks(function, world_size, *arguments, timeout_seconds=timeout_seconds, **options)
