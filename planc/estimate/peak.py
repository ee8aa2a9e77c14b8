"""The most that a rank holds at once: a sum over the pools that CUDA streams keep apart.

A caching allocator never gives a stream's memory to another stream, so each pool counts with its own
maximum over the step, and the pools add up. FSDP2 uses three: the compute stream, the stream that copies
shards in for gathering, and the one that reduces gradients.
"""

from __future__ import annotations

from itertools import pairwise

from planc.devices.segment import Segment
from planc.estimate.backward import Moment
from planc.estimate.gaps import Gap
from planc.estimate.units import Unit
from planc.record import record

GAPS = "gaps"
"""What is reserved and held by nothing."""


@record
class Pieces:
    """What the peak is made of, in bytes.

    `element` is the size of a compute element, `reduced` of an element in gradient reduction. `states` are
    parameters and optimizer state. What lies in the host's memory is no part of them.
    """

    states: int
    parameters: int
    gradients: int
    unreduced: int
    """The gradients of all that a rank computes, as backward leaves them."""
    activations: int
    recomputed: int
    loss: int
    gaps: tuple[Gap, ...]
    context: int
    backward: Moment
    units: tuple[Unit, ...]
    element: int
    reduced: int
    casts_parameters: bool
    """Whether they are gathered in another dtype than they are stored in."""
    casts_gradients: bool
    """Whether they are reduced in another dtype than they are stored in."""
    brought: int
    """Bytes of an element that is brought from the host to be gathered; 0 where parameters stay."""
    accumulates: bool
    update: int
    """What the optimizer's step holds beside."""
    message: int
    """The largest message of gradients that replicas without FSDP sum."""

    @property
    def is_sharded(self) -> bool:
        return any(unit.shard_over for unit in self.units)

    @property
    def whole_gradients(self) -> int:
        """FSDP reduces once a step: between micro steps a rank holds the gradients of all it computes."""
        return self.unreduced if self.units and self.accumulates else 0


@record
class Phase:
    """A part of a step: what the compute stream holds then, (name, bytes)."""

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.parts)

    @property
    def held_bytes(self) -> int:
        """Without the gaps."""
        return sum(num_bytes for name, num_bytes in self.parts if name != GAPS)


def gathering_pool(pieces: Pieces) -> int:
    """Gathered copies of two units in a row, for the next is prefetched; reused by all that fit.

    Shards are cast into a buffer of their own before they are gathered (foreach_all_gather in torch's
    _fsdp_collectives.py).
    """
    gathered = _gathered(pieces)
    alone = (cast + size for cast, size in gathered[:1])
    pairs = (before + cast + size for (_, before), (cast, size) in pairwise(gathered))
    return max((*alone, *pairs), default=0)


def gathering_gap(pieces: Pieces) -> int:
    """What the pool reserves beyond that: a larger unit does not fit into a smaller one's room."""
    pool = Segment()
    freed: list[tuple[int, int]] = []
    for sizes in _gathered(pieces):
        *casts, whole = [(pool.take(size), size) for size in sizes if size]
        for start, size in (*casts, *freed):
            pool.give(start, num_bytes=size)
        freed = [whole]
    return pool.end - gathering_pool(pieces)


def _gathered(pieces: Pieces) -> tuple[tuple[int, int], ...]:
    """(the shards as they are gathered, the whole) of every unit in forward's order, in bytes."""
    if not pieces.is_sharded:
        return ()
    shard = pieces.element * int(pieces.casts_parameters) + pieces.brought
    return tuple((shard * unit.num_local, pieces.element * unit.num_gathered) for unit in pieces.units)


def reducing_pool(pieces: Pieces) -> int:
    """Sharded gradients, and the largest unit's share for a while where it is reduced in another dtype.

    Where gradients are offloaded, the largest unit's share is all that there is. Summing over replicas
    holds two units' shares then; one rank, which has nothing to scatter, divides its gradients into a new
    tensor (foreach_reduce in torch's _fsdp_collectives.py).
    """
    shares = [unit.num_local * _passing_shares(pieces, unit) for unit in pieces.units]
    return pieces.gradients + pieces.reduced * max(shares) if shares else 0


def _passing_shares(pieces: Pieces, unit: Unit) -> int:
    """How often a unit's share is held beside its gradients."""
    cast = (2 if unit.replicate_over else 1) if pieces.casts_gradients else 0
    return max(cast, 0 if unit.shard_over and not pieces.brought else 1)


def phases(pieces: Pieces) -> tuple[Phase, ...]:
    """The parts of a step, with what the compute stream holds beside the states."""
    kept_unsharded = sum(unit.num_gathered for unit in pieces.units if not unit.reshard_after_forward)
    own_gradients = 0 if pieces.units else pieces.unreduced
    held = pieces.whole_gradients + own_gradients if pieces.accumulates else 0
    before = ("gradients between micro steps", held)
    backward = pieces.backward
    replicas = Phase("sum over replicas", (("whole gradients", own_gradients), ("message", pieces.message)))
    return (
        Phase(
            "forward and loss",
            (
                ("activations", pieces.activations),
                ("loss", pieces.loss),
                (GAPS, sum(gap.num_bytes for gap in pieces.gaps)),
                ("gathered parameters", pieces.element * kept_unsharded),
                before,
            ),
        ),
        Phase(
            "backward",
            (
                ("activations", backward.activations),
                ("gradients of activations", backward.passing),
                ("gradients of weights", backward.weights),
                ("gradients under reduction", backward.reducing),
                ("gathered parameters", backward.gathered),
                (GAPS, backward.gaps),
                before,
            ),
        ),
        *((replicas,) if pieces.message else ()),
        Phase("optimizer", (("whole gradients", own_gradients), ("update", pieces.update))),
    )


def peak_parts(pieces: Pieces) -> tuple[tuple[str, int], ...]:
    """What is reserved at the peak, the largest part first: states, pools, and the largest phase's parts."""
    largest = max(phases(pieces), key=lambda phase: phase.num_bytes)
    found = dict([*_everywhere(pieces), *largest.parts])
    found[GAPS] = found.get(GAPS, 0) + gathering_gap(pieces)
    parts = ((name, num_bytes) for name, num_bytes in found.items() if num_bytes)
    return tuple(sorted(parts, key=lambda part: -part[1]))


def _everywhere(pieces: Pieces) -> tuple[tuple[str, int], ...]:
    """What every phase has."""
    return (
        ("parameters", pieces.parameters),
        ("optimizer", pieces.states - pieces.parameters),
        ("gathering pool", gathering_pool(pieces)),
        ("reducing pool", reducing_pool(pieces)),
    )


def peak_bytes(pieces: Pieces) -> int:
    """Bytes reserved at the peak: states, both pools, the largest phase of the compute stream, and gaps."""
    return sum(num_bytes for _, num_bytes in peak_parts(pieces))


def held_bytes(pieces: Pieces) -> int:
    """The most that blocks hold, each stream at its own worst moment: the peak, if there were no gaps."""
    everywhere = sum(num_bytes for _, num_bytes in _everywhere(pieces))
    return everywhere + max(phase.held_bytes for phase in phases(pieces))
