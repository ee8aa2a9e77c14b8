"""The most that a rank holds at once: a sum over the pools that CUDA streams keep apart.

A caching allocator never gives a stream's memory to another stream, so each pool counts with its own
maximum over the step, and the pools add up. FSDP2 uses three: the compute stream, the stream that copies
shards in for gathering, and the one that reduces gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from planc.estimate.units import Unit


@dataclass(frozen=True, slots=True)
class Pieces:
    """What the peak is made of, in bytes.

    `element` is the size of a compute element, `reduced` of an element in gradient reduction. `states` are
    parameters and optimizer state.
    """

    states: int
    parameters: int
    gradients: int
    unreduced: int
    """The gradients of all that a rank computes, as backward leaves them."""
    activations: int
    recomputed: int
    loss: int
    context: int
    units: tuple[Unit, ...]
    element: int
    reduced: int
    accumulates: bool

    @property
    def is_sharded(self) -> bool:
        return any(unit.shard_over for unit in self.units)

    @property
    def whole_gradients(self) -> int:
        """FSDP reduces once a step: between micro steps a rank holds the gradients of all it computes."""
        return self.unreduced if self.units and self.accumulates else 0


def gathering_pool(pieces: Pieces) -> int:
    """Gathered copies of two units in a row, for the next is prefetched; reused by all."""
    if not pieces.is_sharded:
        return 0
    return pieces.element * _largest_pair(pieces.units)


def _largest_pair(units: tuple[Unit, ...]) -> int:
    sizes = [unit.num_elements for unit in units]
    return max([*(first + second for first, second in pairwise(sizes)), *sizes], default=0)


def reducing_pool(pieces: Pieces) -> int:
    """Sharded gradients; summing over replicas keeps another copy of the largest unit's share."""
    if not pieces.units:
        return 0
    replicas = [unit.num_local for unit in pieces.units if unit.replicate_over]
    return pieces.gradients + pieces.reduced * max(replicas, default=0)


def compute_phases(pieces: Pieces) -> tuple[tuple[str, int], ...]:
    """(part of the step, bytes of the compute stream beside the states)."""
    kept_unsharded = sum(unit.num_elements for unit in pieces.units if not unit.reshard_after_forward)
    unsharded = pieces.element * kept_unsharded if pieces.is_sharded else 0
    pair = pieces.element * _largest_pair(pieces.units) if pieces.is_sharded else 0
    reducing = max(
        (pieces.element * unit.num_gradients + pieces.reduced * unit.num_elements for unit in pieces.units),
        default=0,
    )
    unreduced = pieces.whole_gradients
    own_gradients = 0 if pieces.units else pieces.unreduced
    before = unreduced + own_gradients if pieces.accumulates else 0
    backward = pieces.activations + pieces.recomputed + pieces.context + max(pair, unsharded)
    return (
        ("forward and loss", pieces.activations + pieces.loss + unsharded + before),
        ("backward", backward + reducing + before),
        ("end of backward", pair + reducing + unreduced + own_gradients),
        # The foreach update takes the square root of all second moments at once.
        ("optimizer", pieces.parameters + own_gradients),
    )


def peak_bytes(pieces: Pieces) -> int:
    """Bytes reserved at the peak: states, both pools, and the largest phase of the compute stream."""
    pools = gathering_pool(pieces) + reducing_pool(pieces)
    return pieces.states + pools + max(num_bytes for _, num_bytes in compute_phases(pieces))
