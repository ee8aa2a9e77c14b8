"""The rank pool of `planc verify`, for tests."""

from planc.verify.pool import RankError, run_ranks, start_server

__all__ = ["RankError", "run_ranks", "start_server"]
