"""The decorators by which a plan's own Python files register code: `from planc.extend import loss`.

A plan names the file with `extension "losses.py"`, and what it registers by its name:
`train { loss = focal(gamma = 2.0) }`. Each decorator's docstring is the contract of its kind, which planc
tries before the first step. Imports nothing but planc's own records: torch is the file's to import.
"""

from __future__ import annotations

from planc.extend.decorators import (
    KINDS,
    Kind,
    Stop,
    callback,
    data_source,
    loss,
    metric,
    model,
    optimizer,
    row_transform,
    schedule,
)

__all__ = [
    "KINDS",
    "Kind",
    "Stop",
    "callback",
    "data_source",
    "loss",
    "metric",
    "model",
    "optimizer",
    "row_transform",
    "schedule",
]
