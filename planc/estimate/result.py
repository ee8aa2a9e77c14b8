"""An estimate as data.

Everything is per rank, and for rank 0 if ranks differ: chunks shrink towards the last rank, so rank 0
holds and sends the most. The pp ranks of a pipeline differ by more, and each has its own. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from planc.devices.attention_kernels import AttentionUse
from planc.estimate.flops import Flops
from planc.record import record
from planc.vocab import GroupDim

_WHOSE = "Figures are for rank 0, which holds and sends the most."
_WHOSE_OF_PIPELINE = "Each figure is for the pp rank with the most of it."
_CONVENTION = (
    "Memory is what CUDA's caching allocator reserves, without context and communicators;",
    "CPU ranks have no caching allocator; their processes also hold Python and PyTorch.",
    "Bytes are what a rank sends, by ring algorithms.",
)


@record
class Amount:
    """Bytes, their formula, and its source. `is_exact` amounts are tested against a run."""

    name: str
    num_bytes: int
    is_exact: bool
    formula: str
    source: str


class Kind(StrEnum):
    """A kind of collective; the value is PyTorch's name."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    GATHER = "gather"
    BROADCAST = "broadcast"
    SEND = "send"
    """A send to a neighbor: in a ring, with as many bytes received from the other one; or between two
    stages."""


@record
class Collective:
    """`count` equal collectives of one step.

    `over` are the mesh dims of more than one rank that form the group, `group_size` their product.
    `input_bytes` is the tensor that this rank passes to one of them.
    """

    over: tuple[GroupDim, ...]
    group_size: int
    kind: Kind
    cause: str
    """Its cause: `tp.shard`, `fsdp.shard`, `attention`, ..."""
    count: int
    input_bytes: int
    is_routed: bool = False
    """Whether the bytes follow from where routers send tokens: `input_bytes` is for experts of equal load."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends in a step, all `count` together.

        Ring algorithms on n ranks, input of B bytes (nccl-tests, PERFORMANCE.md): all-gather (n-1) B,
        reduce-scatter and all-to-all (n-1)/n B, all-reduce 2 (n-1)/n B; a send is B. Rounded down. Of a
        gather every rank but the first sends B, and of a broadcast the first (n-1) B.
        """
        others, size = self.group_size - 1, self.group_size
        match self.kind:
            case Kind.ALL_GATHER | Kind.BROADCAST:
                each = others * self.input_bytes
            case Kind.REDUCE_SCATTER | Kind.ALL_TO_ALL:
                each = others * self.input_bytes // size
            case Kind.ALL_REDUCE:
                each = 2 * others * self.input_bytes // size
            case Kind.SEND | Kind.GATHER:
                each = self.input_bytes
        return self.count * each


AT_PEAK: Mapping[str, tuple[bool, str]] = {
    "parameters": (True, "shards in their stored dtype"),
    "optimizer": (True, "optimizer state of the shards"),
    "averages": (True, "moving averages of the shards"),
    "image encoder": (True, "its parameters, whole on every rank"),
    "images": (False, "an encoder's pixels and hidden states"),
    "gathering pool": (False, "FSDP's copy-in stream: two consecutive units, gathered"),
    "reducing pool": (False, "FSDP's reduce stream: this rank's gradient shards"),
    "activations": (False, "kept for backward, or recomputed"),
    "loss": (False, "tensors [tokens, vocabulary] in cross entropy's backward"),
    "gaps": (False, "freed blocks too small for the allocations at the peak"),
    "gathered parameters": (False, "gathered units: not resharded after forward, or in use"),
    "gradients between micro steps": (True, "all gradients of a rank, until the last micro step"),
    "gradients of activations": (False, "in the module that backward is in"),
    "gradients of weights": (False, "waiting for their unit's reduction"),
    "gradients under reduction": (False, "a unit's, copied into one tensor of the reduce dtype"),
    "whole gradients": (True, "all gradients of a rank, unsharded"),
    "message": (True, "the largest gradient message between replicas"),
    "update": (False, "temporary tensors of the optimizer's step"),
}
"""The possible parts of a peak: whether a part is exact, and its contents."""


@record
class Memory:
    """A rank's memory by purpose, and its peak."""

    parts: tuple[Amount, ...]
    peak: Amount
    phases: tuple[tuple[str, int], ...]
    """The parts of a step, with the bytes of the compute stream without the states."""
    held_bytes: int
    """The peak, if the allocator left no gaps between blocks."""
    peak_parts: tuple[tuple[str, int], ...]
    """The parts of the peak, the largest first: (name, bytes)."""
    host_bytes: int = 0
    """The bytes of the parts in host memory, which are not part of the peak."""

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
class AtInterval:
    """The communication of an op that is not due in every step, which is not part of a step's."""

    op: str
    every_steps: int
    collectives: tuple[Collective, ...]

    @property
    def sent_bytes(self) -> int:
        return sum(one.sent_bytes for one in self.collectives)


@record
class Place:
    """The place of a rank in a pipeline, and the most micro batches that it has in flight."""

    pp_rank: int
    stages: tuple[int, ...]
    in_flight: int


@record
class Saved:
    """The bytes of one checkpoint's tensors, and of those that it leaves to the model's files.

    A run has up to `at_once` checkpoints, of which evaluations keep the best `num_best`.
    """

    num_bytes: int
    left_out_bytes: int
    at_once: int = 0
    num_best: int = 0


@record
class Estimate:
    """A plan's memory, communication and work, and the elements of its parameters on one rank."""

    memory: Memory
    collectives: tuple[Collective, ...]
    num_local_parameters: int
    flops: Flops
    at_intervals: tuple[AtInterval, ...] = ()
    attention: tuple[AttentionUse, ...] = ()
    not_modeled: tuple[str, ...] = ()
    """The parts of the plan that the estimate does not model."""
    place: Place | None = None
    """The place in a pipeline that reaches `memory`."""
    ranks: tuple[Estimate, ...] = ()
    """The estimates of all pp ranks, in a pipeline's own."""
    checkpoint: Saved | None = None
    """None for a plan that saves none."""
    stored_sequence_bytes: int = 0
    """Bytes on disk of a teacher's log-probabilities for each sequence of the data; 0 without a teacher."""
    expert_load: int = 1
    """The rows of a rank's experts, as a multiple of an equal share."""

    @property
    def convention(self) -> tuple[str, ...]:
        """The caveats of every number."""
        whose = _WHOSE_OF_PIPELINE if self.ranks else _WHOSE
        return f"Closed-form estimate, uncalibrated. {whose}", *_CONVENTION

    @property
    def whose(self) -> str:
        """` of pp rank 1`, the place that reaches `memory`; empty without a pipeline."""
        return "" if self.place is None else f" of pp rank {self.place.pp_rank}"

    def of_most(self, size: Callable[[Estimate], int]) -> Estimate:
        """Return the estimate of the pp rank with the most of a figure; without a pipeline, this one."""
        return max(self.ranks, key=size, default=self)

    def sent_bytes(self, collectives: Iterable[Collective] | None = None) -> int:
        """Bytes sent in a step: by all collectives, or by the given ones."""
        chosen = self.collectives if collectives is None else collectives
        return sum(collective.sent_bytes for collective in chosen)
