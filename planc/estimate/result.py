"""An estimate as data.

Everything is per rank, and of rank 0 where ranks differ: chunks shrink towards the last rank, so rank 0
holds and sends the most. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from planc.estimate.flops import Flops
from planc.record import record
from planc.vocab import MeshDim

CONVENTION = (
    "Closed form, not calibrated. Per rank: rank 0, which holds and sends the most.",
    "Memory is what CUDA's caching allocator reserves, without context and communicators;",
    "on CPUs there are no pools, and a process also holds Python and PyTorch.",
    "Bytes are what a rank sends, by ring algorithms.",
)
"""What every number of an estimate stands under."""


@record
class Amount:
    """Bytes, how they were computed, and where that comes from. `is_exact` ones are proven against a run."""

    name: str
    num_bytes: int
    is_exact: bool
    formula: str
    source: str


class Kind(StrEnum):
    """What a collective does; the value is PyTorch's name."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    """To the next rank of a ring, as much coming from the one before."""


@record
class Collective:
    """`count` equal collectives of one step.

    `over` are the mesh dims of more than one rank that form the group, `group_size` their product.
    `input_bytes` is the tensor that this rank passes to one of them.
    """

    over: tuple[MeshDim, ...]
    group_size: int
    kind: Kind
    cause: str
    """What needs it: `tp.shard`, `fsdp.shard`, `attention`, ..."""
    count: int
    input_bytes: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends in a step, all `count` together.

        Ring algorithms on n ranks, input of B bytes (nccl-tests, PERFORMANCE.md): all-gather (n-1) B,
        reduce-scatter and all-to-all (n-1)/n B, all-reduce 2 (n-1)/n B; a send is B. Rounded down.
        """
        others, size = self.group_size - 1, self.group_size
        match self.kind:
            case Kind.ALL_GATHER:
                each = others * self.input_bytes
            case Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                each = others * self.input_bytes // size
            case Kind.ALL_REDUCE:
                each = 2 * others * self.input_bytes // size
            case Kind.SEND:
                each = self.input_bytes
        return self.count * each


AT_PEAK: Mapping[str, tuple[bool, str]] = {
    "parameters": (True, "shards, as they are stored"),
    "optimizer": (True, "what it keeps of the shards"),
    "gathering pool": (False, "FSDP's copy-in stream: two units in a row, gathered"),
    "reducing pool": (False, "FSDP's reduce stream: the gradients, sharded"),
    "activations": (False, "kept for backward, or brought back by recomputing"),
    "loss": (False, "tensors [tokens, vocabulary] in cross entropy's backward"),
    "gaps": (False, "freed, and too small for what is allocated at the peak"),
    "gathered parameters": (False, "units that are whole: not resharded after forward, or in use"),
    "gradients between micro steps": (True, "of all that a rank computes, until the last micro step"),
    "gradients of activations": (False, "on their way through the module that backward is in"),
    "gradients of weights": (False, "that wait for their unit's reduction"),
    "gradients under reduction": (False, "a unit's, copied into one tensor of the reduce dtype"),
    "whole gradients": (True, "of all that a rank computes, not sharded"),
    "message": (True, "the largest that replicas sum at once"),
    "update": (False, "what the optimizer's step computes beside its state"),
}
"""What a peak can be made of: whether a part is exact, and what it holds."""


@record
class Memory:
    """What a rank holds, by what it is for, and the most that it holds at once."""

    parts: tuple[Amount, ...]
    peak: Amount
    phases: tuple[tuple[str, int], ...]
    """The parts of a step, with the bytes of the compute stream beside the states."""
    held_bytes: int
    """The peak, if the allocator left no gaps between blocks."""
    peak_parts: tuple[tuple[str, int], ...]
    """What the peak is made of, the largest first: (name, bytes)."""
    host_bytes: int = 0
    """Of the parts, what lies in the host's memory, and is no part of the peak."""

    @property
    def peak_phase(self) -> str:
        """The part of a step in which the peak is reached."""
        return max(self.phases, key=lambda phase: phase[1])[0]

    def explained(self, name: str) -> Amount:
        """A part of the peak, with how it was computed."""
        size = dict(self.peak_parts)[name]
        is_exact, formula = AT_PEAK[name]
        same = (part for part in self.parts if (part.name, part.num_bytes) == (name, size))
        return next(same, Amount(name, size, is_exact, formula, "planc/estimate/peak.py"))

    def part(self, name: str) -> Amount:
        return next(part for part in self.parts if part.name == name)


@record
class Comparison:
    """What comparing replicas takes, after every so many steps, and no part of what a step sends."""

    every_steps: int
    collectives: tuple[Collective, ...]

    @property
    def sent_bytes(self) -> int:
        return sum(one.sent_bytes for one in self.collectives)


@record
class Estimate:
    """A plan's memory, communication and work, and the elements of its parameters on one rank."""

    memory: Memory
    collectives: tuple[Collective, ...]
    num_local_parameters: int
    flops: Flops
    comparison: Comparison | None = None
    not_modeled: tuple[str, ...] = ()
    """What of the plan the estimate knows nothing about."""

    def sent_bytes(self, collectives: Iterable[Collective] | None = None) -> int:
        """Bytes sent in a step: by all collectives, or by the given ones."""
        chosen = self.collectives if collectives is None else collectives
        return sum(collective.sent_bytes for collective in chosen)
