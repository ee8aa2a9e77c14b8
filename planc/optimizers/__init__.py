"""Optimizers as data: one file each, registered here in one union. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from planc.optimizers.adamw import AdamW
from planc.optimizers.muon import Muon
from planc.optimizers.optimizer import OptimizerKind
from planc.optimizers.own import OwnOptimizer
from planc.optimizers.sgd import Sgd
from planc.optimizers.stored_adamw import AdamW8bit, AdamWBf16

AnyOptimizer = AdamW | Sgd | Muon | AdamW8bit | AdamWBf16 | OwnOptimizer
OPTIMIZERS: tuple[type[OptimizerKind], ...] = get_args(AnyOptimizer)
BY_NAME: Mapping[str, type[OptimizerKind]] = {
    kind.__dataclass_fields__["kind"].default: kind for kind in OPTIMIZERS
}

__all__ = ["BY_NAME", "OPTIMIZERS", "AnyOptimizer", "OptimizerKind"]
