"""One rank of a case; what `planc verify` runs is what runs here."""

from planc.verify.ranks import (
    Digests,
    Metrics,
    Record,
    Recorder,
    Task,
    digest,
    local_digests,
    open_run,
    train_rank,
    whole_tensors,
)

__all__ = [
    "Digests",
    "Metrics",
    "Record",
    "Recorder",
    "Task",
    "digest",
    "local_digests",
    "open_run",
    "train_rank",
    "whole_tensors",
]
