"""The decorators by which a plan's own Python files register code: `from planc.extend import loss`.

A plan names the file with `extension "losses.py"`, and what it registers by its name:
`train { loss = focal(gamma = 2.0) }`. Each decorator's docstring is the contract of its kind, which planc
tries before the first step. Imports nothing but planc's own records: torch is the file's to import.
"""

from __future__ import annotations

from collections.abc import Mapping

from planc.extend.callback import CALLBACK, Stop, callback
from planc.extend.data_source import DATA_SOURCE, data_source
from planc.extend.kind import Kind
from planc.extend.loss import LOSS, loss
from planc.extend.metric import METRIC, metric
from planc.extend.model import MODEL, model
from planc.extend.optimizer import OPTIMIZER, optimizer
from planc.extend.row_transform import ROW_TRANSFORM, row_transform
from planc.extend.schedule import SCHEDULE, schedule

_ALL = (LOSS, OPTIMIZER, SCHEDULE, MODEL, DATA_SOURCE, ROW_TRANSFORM, METRIC, CALLBACK)
KINDS: Mapping[str, Kind] = {kind.word: kind for kind in _ALL}
"""Every kind of extension, by the name of its decorator."""

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
