"""Optimizers as data: one file each, registered here in one tuple. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from planc.optimizers.adamw import ADAMW
from planc.optimizers.optimizer import OptimizerKind, Settings
from planc.optimizers.sgd import SGD

OPTIMIZERS: tuple[OptimizerKind, ...] = (ADAMW, SGD)
BY_NAME: Mapping[str, OptimizerKind] = {kind.name: kind for kind in OPTIMIZERS}

__all__ = ["BY_NAME", "OPTIMIZERS", "OptimizerKind", "Settings"]
