"""The peak memory of a rank: a sum over the separate pools of CUDA streams.

A caching allocator never gives a stream's memory to another stream, so each pool counts with its own
maximum over the step, and the pools add up. FSDP2 uses three: the compute stream, the stream that copies
shards in for gathering, and the one that reduces gradients.
"""

from __future__ import annotations

from collections import deque

from planc.devices.segment import Segment
from planc.estimate.backward import Moment
from planc.estimate.gaps import Gap
from planc.estimate.units import Unit
from planc.record import record

GAPS = "gaps"
"""Memory that is reserved and not in use."""


_BETWEEN, _OF_WEIGHTS, _WHOLE = "gradients between micro steps", "gradients of weights", "whole gradients"
_OWN_GRADIENTS = (_BETWEEN, _OF_WEIGHTS, _WHOLE)


@record
class Pieces:
    """The parts of the peak, in bytes.

    `element` is the size of a compute element, `reduced` of an element in gradient reduction. `states` are
    parameters, optimizer state and averages, without any in host memory.
    """

    states: int
    parameters: int
    averages: int
    encoder: int
    """The image encoder's parameters."""
    images: int
    """The most that it takes while it runs."""
    gradients: int
    unreduced: int
    """All gradients of a rank after backward."""
    small_gradients: int
    """The part of them that alone uses the segment for small blocks."""
    activations: int
    recomputed: int
    loss: int
    gathered_at_loss: int
    """Bytes of parameters that stay gathered after the last layer's forward."""
    gathered_later: int
    """The same, once there are gradients to hold: fewer where backwards follow each other."""
    gaps: tuple[Gap, ...]
    context: int
    backward: Moment
    weights: Moment | None
    """The moment of the gradients of weights, if they are apart."""
    units: tuple[Unit, ...]
    element: int
    reduced: int
    casts_parameters: bool
    """Whether parameters are gathered in another dtype than they are stored in."""
    casts_gradients: bool
    """Whether gradients are reduced in another dtype than parameters are stored in."""
    ahead: int
    """Units that are gathered before they are needed."""
    brought: int
    """Bytes of an element that is copied from the host to be gathered; 0 without offloading."""
    accumulates: bool
    added: int
    """Bytes of an element of reduced gradients that are added to those of micro steps before; 0 if a step
    reduces once."""
    spared: int
    """The bytes by which activations take less once gradients are held between micro steps."""
    update: int
    """Temporary memory of the optimizer's step."""
    message: int
    """The largest copy of gradients that replicas without FSDP sum."""

    @property
    def is_sharded(self) -> bool:
        return any(unit.shard_over for unit in self.units)

    @property
    def whole_gradients(self) -> int:
        """All of a rank's gradients between micro steps, if FSDP reduces once per step."""
        return self.unreduced if self.units and self.accumulates and not self.added else 0


@record
class Phase:
    """A part of a step, with the contents of the compute stream: (name, bytes)."""

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
    """Gathered copies of consecutive units, since the next are prefetched; all that fit reuse them.

    Shards are cast into a buffer of their own before they are gathered (foreach_all_gather in torch's
    _fsdp_collectives.py).
    """
    gathered = _gathered(pieces)
    held = (
        sum(before for _, before in gathered[max(0, index - pieces.ahead) : index]) + cast + size
        for index, (cast, size) in enumerate(gathered)
    )
    return max(held, default=0)


def gathering_gap(pieces: Pieces) -> int:
    """Additional memory of the pool: a larger unit does not fit into a smaller one's block."""
    pool = Segment()
    held: deque[tuple[int, int]] = deque()
    for sizes in _gathered(pieces):
        *casts, whole = [(pool.take(size), size) for size in sizes if size]
        freed = [held.popleft()] if len(held) == pieces.ahead else []
        for start, size in (*casts, *freed):
            pool.give(start, num_bytes=size)
        held.append(whole)
    return pool.end - gathering_pool(pieces)


def _gathered(pieces: Pieces) -> tuple[tuple[int, int], ...]:
    """(the shards as they are gathered, the whole) of every unit in forward's order, in bytes."""
    if not pieces.is_sharded:
        return ()
    shard = pieces.element * int(pieces.casts_parameters) + pieces.brought
    return tuple((shard * unit.num_local, pieces.element * unit.num_gathered) for unit in pieces.units)


def small_gap(pieces: Pieces, phase: Phase) -> int:
    """The memory of the segment of small blocks that its gradients fill at another time than in this phase.

    What FSDP reduces is in the reducing pool instead.
    """
    in_phase = sum(num_bytes for name, num_bytes in phase.parts if name in _OWN_GRADIENTS)
    return 0 if pieces.units else max(0, pieces.small_gradients - in_phase)


def reducing_pool(pieces: Pieces) -> int:
    """Sharded gradients, what replicas summed, and for a time the largest unit's shard in another dtype.

    FSDP2 keeps what replicas sum until backward ends (FSDPParamGroup.finalize_backward in torch 2.13): memory
    of its own unless it becomes the gradient. With offloaded gradients, no gradients stay.
    """
    passing = max((_passing_bytes(pieces, unit) for unit in pieces.units), default=0)
    is_apart = pieces.casts_gradients or pieces.added or pieces.brought
    summed = sum(unit.num_reduced for unit in pieces.units if unit.replicate_over) if is_apart else 0
    return (pieces.gradients if pieces.units else 0) + summed * pieces.reduced + passing


def _passing_bytes(pieces: Pieces, unit: Unit) -> int:
    """Bytes of a unit's shard in addition to its gradients and what replicas summed, for a time."""
    if unit.replicate_over:
        # Without shards, a replica divides its gradients into a new tensor (foreach_reduce).
        divided = 0 if unit.shard_over else pieces.reduced
        return unit.num_reduced * (divided + pieces.added * int(pieces.casts_gradients))
    cast = pieces.reduced if pieces.casts_gradients or pieces.brought else 0
    return unit.num_reduced * (cast + pieces.added)


def phases(pieces: Pieces) -> tuple[Phase, ...]:
    """The parts of a step, with the contents of the compute stream without the states."""
    own_gradients = 0 if pieces.units else pieces.unreduced
    held = max(0, pieces.whole_gradients + own_gradients - pieces.spared) if pieces.accumulates else 0
    before = (_BETWEEN, held)
    backward = pieces.backward
    # The first backward is the fullest while it holds no gradients, unless a later one holds more.
    is_later = pieces.gathered_later + held >= pieces.gathered_at_loss
    at_loss = pieces.gathered_later if is_later else pieces.gathered_at_loss
    replicas = Phase("sum over replicas", ((_WHOLE, own_gradients), ("message", pieces.message)))
    return (
        *((Phase("encoding images", (before, ("images", pieces.images))),) if pieces.images else ()),
        Phase(
            "forward and loss",
            (
                ("activations", pieces.activations),
                ("loss", pieces.loss),
                (GAPS, sum(gap.num_bytes for gap in pieces.gaps)),
                ("gathered parameters", at_loss),
                *((before,) if is_later else ()),
            ),
        ),
        Phase(
            "backward",
            (
                ("activations", backward.activations),
                ("gradients of activations", backward.passing),
                (_OF_WEIGHTS, backward.weights),
                ("gradients under reduction", backward.reducing),
                ("gathered parameters", backward.gathered),
                (GAPS, backward.gaps),
                before,
            ),
        ),
        *((_weights(pieces.weights, before),) if pieces.weights else ()),
        *((replicas,) if pieces.message else ()),
        Phase("optimizer", ((_WHOLE, own_gradients), ("update", pieces.update))),
    )


def _weights(moment: Moment, before: tuple[str, int]) -> Phase:
    return Phase(
        _OF_WEIGHTS,
        (
            ("activations", moment.activations),
            (_OF_WEIGHTS, moment.weights),
            ("gathered parameters", moment.gathered),
            before,
        ),
    )


def peak_parts(pieces: Pieces) -> tuple[tuple[str, int], ...]:
    """Reserved memory at the peak, the largest part first: states, pools, and the largest phase's parts."""
    largest = max(phases(pieces), key=lambda phase: phase.num_bytes)
    found = dict([*_everywhere(pieces), *largest.parts])
    found[GAPS] = found.get(GAPS, 0) + gathering_gap(pieces) + small_gap(pieces, largest)
    parts = ((name, num_bytes) for name, num_bytes in found.items() if num_bytes)
    return tuple(sorted(parts, key=lambda part: -part[1]))


def _everywhere(pieces: Pieces) -> tuple[tuple[str, int], ...]:
    """The parts that every phase has."""
    return (
        ("parameters", pieces.parameters),
        ("optimizer", pieces.states - pieces.parameters - pieces.averages),
        ("averages", pieces.averages),
        ("image encoder", pieces.encoder),
        ("gathering pool", gathering_pool(pieces)),
        ("reducing pool", reducing_pool(pieces)),
    )


def peak_bytes(pieces: Pieces) -> int:
    """Bytes reserved at the peak: states, both pools, the largest phase of the compute stream, and gaps."""
    return sum(num_bytes for _, num_bytes in peak_parts(pieces))


def held_bytes(pieces: Pieces) -> int:
    """The most that blocks hold, with each stream at its own maximum: the peak without gaps."""
    everywhere = sum(num_bytes for _, num_bytes in _everywhere(pieces))
    return everywhere + max(phase.held_bytes for phase in phases(pieces))
