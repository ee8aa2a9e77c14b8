"""All kinds of configs."""

from __future__ import annotations

from planc.import_configs.kind import Kind
from planc.import_configs.kinds.torchtitan import TORCHTITAN

KINDS: tuple[Kind, ...] = (TORCHTITAN,)
BY_NAME = {kind.name: kind for kind in KINDS}
