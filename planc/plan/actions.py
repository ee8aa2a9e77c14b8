"""Actions of rules that have no settings, or one."""

from __future__ import annotations

from planc.plan.keys import key, keyed
from planc.plan.scalars import Int
from planc.record import record


@keyed
class BufferShard:
    tensor_dim: int = key(Int(0, 7), doc="the tensor dimension to shard", positional=True)


@record
class Frozen:
    """Keep the parameters as they are: no gradient, no optimizer state, no reduction."""


@record
class Trained:
    """Train the parameters."""


@record
class Region:
    """Compile the module as one."""


@record
class NoRegion:
    """Run the module without compiling it."""
