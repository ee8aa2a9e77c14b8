"""The edges of modules over tp: how a value changes hands where it enters or leaves a module.

Ranks hold a value between modules in one of these ways, with its gradient:

| value     | gradient  | the ranks                                                             |
|-----------|-----------|-----------------------------------------------------------------------|
| Replicate | Replicate | compute the same with it: each gets the whole gradient                |
| Replicate | Partial   | each compute their own part with it: the gradient is yet to be summed |
| Shard(d)  | Shard(d)  | have a shard each                                                     |
| Partial   | Replicate | have summands: the value is yet to be summed                          |

An edge goes from one to another. `Edge.forward` and `Edge.backward` are the only place that states what is
sent for it: the graph lists them, the estimate counts their bytes, and tests compare these with what runs
send.
"""

from __future__ import annotations

from enum import StrEnum

from planc.record import record
from planc.vocab import Partial, Placement, Replicate, Shard

BATCH = Shard(0)
SEQUENCE = Shard(1)
FEATURES = Shard(-1)

NUM_DIMS = 3
"""The dimensions of activations between modules: [batch, sequence, features]."""


def normal(placement: Placement) -> Placement:
    """The layout that a placement of [batch, sequence, features] means, by its usual name.

    After the view to heads, `Shard(2)` is whole heads, which are the same ranks' features.
    """
    if isinstance(placement, Shard) and -NUM_DIMS <= placement.tensor_dim < NUM_DIMS:
        return (BATCH, SEQUENCE, FEATURES)[placement.tensor_dim % NUM_DIMS]
    return placement


class Transfer(StrEnum):
    """A change of how ranks hold a value. The first four send nothing."""

    KEEP = "keep"
    SPLIT = "split"
    """Each rank takes its shard of a whole value."""
    PAD = "pad"
    """Each rank's shard becomes a summand of the whole, with zeros around it."""
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"

    @property
    def sends(self) -> bool:
        return self not in (Transfer.KEEP, Transfer.SPLIT, Transfer.PAD)


class At(StrEnum):
    """The value that an edge is about."""

    INPUT = "input"
    OUTPUT = "output"
    ROUTING_WEIGHTS = "routing_weights"
    """The weights of each token's experts: an input of experts in addition to the tokens."""
    ROTARY_OUTPUT = "rotary_output"
    """The last features of a latent projection's output, which each rank's heads read."""


@record
class Distribution:
    """The placement over a mesh dim of a value, and of its gradient."""

    value: Placement
    gradient: Placement


WHOLE = Distribution(Replicate(), Replicate())
READ_BY_PARTS = Distribution(Replicate(), Partial())


def distribution(value: Placement) -> Distribution:
    """Return a value's distribution, with its gradient as it is where nothing is left to be summed."""
    return Distribution(value, Replicate() if isinstance(value, Partial) else value)


@record
class Edge:
    """A value that enters or leaves a module: how ranks hold it before, and after."""

    at: At
    arriving: Distribution
    leaving: Distribution

    @property
    def forward(self) -> Transfer:
        return transfer(self.arriving.value, self.leaving.value)

    @property
    def backward(self) -> Transfer:
        return transfer(self.leaving.gradient, self.arriving.gradient)

    def __str__(self) -> str:
        forward = [] if self.forward is Transfer.KEEP else [self.forward.value]
        backward = [] if self.backward is Transfer.KEEP else [f"backward {self.backward}"]
        return f"{self.at}: {', '.join(forward + backward)}"


def transfer(arriving: Placement, leaving: Placement) -> Transfer:
    """Return the transfer from one placement to another."""
    match arriving, leaving:
        case _ if arriving == leaving:
            return Transfer.KEEP
        case Shard(), Shard():
            return Transfer.ALL_TO_ALL
        case Shard(), Replicate():
            return Transfer.ALL_GATHER
        case Shard(), Partial():
            return Transfer.PAD
        case Partial(), Replicate():
            return Transfer.ALL_REDUCE
        case Partial(), Shard():
            return Transfer.REDUCE_SCATTER
        case Replicate(), Shard():
            return Transfer.SPLIT
        case _:
            raise AssertionError(f"no edge goes from {arriving} to {leaving}")
