"""One choice of a search, and everything that it can choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum

from planc.inventory.routers import dispatchable, num_stacked
from planc.inventory.schema import Inventory
from planc.record import record
from planc.vocab import MeshDim


class Recompute(StrEnum):
    """Recomputation of layers, from the most memory to the least; the value is the plan's word."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    OFFLOAD = "offload"


class Rules(StrEnum):
    """The tensor-parallel rules; the value is how the table names them."""

    NONE = ""
    GIVEN = "the plan's rules"
    AUTO = "auto"
    SEQUENCE = "sequence parallel"
    EXPERTS = "sequence parallel, other experts on each rank of tp"


@record
class Mesh:
    """The sizes of a mesh, and its tensor-parallel rules."""

    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    rules: Rules
    pp: int = 1

    @property
    def num_shards(self) -> int:
        """The ranks that share one copy of the parameters."""
        return self.pp * self.dp_shard * self.cp * self.tp

    @property
    def sizes(self) -> tuple[tuple[MeshDim, int], ...]:
        """The sizes of all dims with more than one rank."""
        named = (
            (MeshDim.PP, self.pp),
            (MeshDim.DP_REPLICATE, self.dp_replicate),
            (MeshDim.DP_SHARD, self.dp_shard),
            (MeshDim.CP, self.cp),
            (MeshDim.TP, self.tp),
        )
        return tuple((mesh_dim, size) for mesh_dim, size in named if size > 1)

    @property
    def text(self) -> str:
        return ", ".join(f"{mesh_dim} {size}" for mesh_dim, size in self.sizes) or "one device"


@record
class Choice:
    """One plan of the search: everything that the base plan leaves open."""

    mesh: Mesh
    micro_batch: int
    recompute: Recompute
    reshard: bool
    rotate: str
    """The method of attention under context parallelism; empty without it."""
    in_chunks: bool = False
    """Whether the loss is computed in chunks that planc chooses, where the plan has none."""
    is_compiled: bool = False
    """Whether layers are compiled, where the plan compiles nothing."""
    stages_per_rank: int = 1
    """The stages of a pipeline's rank: with one its schedule is `one_f_one_b`, with more `interleaved`."""
    is_zero_bubble: bool = False
    """Whether a pipeline's schedule is `zero_bubble`; it has one stage a rank."""
    ep: int = 1
    """The ranks of dp_shard and cp, and with `Rules.EXPERTS` of tp, that share one copy of the experts."""

    @property
    def schedule(self) -> str:
        """The pipeline's, as a plan writes it; empty without a pipeline."""
        if self.mesh.pp == 1:
            return ""
        if self.is_zero_bubble:
            return "zero_bubble"
        stages = self.stages_per_rank
        return f"interleaved(stages_per_rank = {stages})" if stages > 1 else "one_f_one_b"

    @property
    def text(self) -> str:
        """All but the mesh, for a reader."""
        parts = [f"micro_batch {self.micro_batch}", f"recompute {self.recompute}"]
        parts += [] if self.reshard else ["no reshard"]
        parts += ["loss in chunks"] if self.in_chunks else []
        parts += ["compiled"] if self.is_compiled else []
        parts += [f"experts over {self.ep}"] if self.ep > 1 else []
        return ", ".join((*parts, *filter(None, (self.schedule, self.rotate, str(self.mesh.rules)))))


@record
class Space:
    """The bounds of the choices: devices, the batch, and the rules that each size of tp may use."""

    num_devices: int
    node: int
    sequence_length: int
    sequences_together: int
    """The sequences of which a micro batch has a multiple."""
    tokens_per_step: int
    rules: dict[int, tuple[Rules, ...]]
    """Rules by the size of tp."""
    rotations: tuple[str, ...]
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    """Without `offload` where nothing is known of the link to the host's memory."""

    def meshes(self) -> Iterator[Mesh]:
        """Every mesh whose batch closes, with the first of its rules."""
        for tp, rules in self.rules.items():
            for cp in self._context_sizes(self.num_devices // tp):
                ranks = self.num_devices // tp // cp
                for dp_shard in _divisors(ranks):
                    mesh = Mesh(ranks // dp_shard, dp_shard, cp, tp, rules[0])
                    if self.micro_batches(mesh):
                        yield mesh

    def _context_sizes(self, ranks: int) -> Iterator[int]:
        """One, and those that leave each rank a sequence long enough to compute while it sends."""
        for cp in _divisors(ranks):
            if cp == 1 or (self.rotations and self.sequence_length // cp >= SHORTEST_PART):
                yield cp

    def micro_batches(self, mesh: Mesh) -> tuple[int, ...]:
        """Sizes that divide the sequences of a rank, smallest first; none if those are not whole."""
        together = self.sequences_together
        most = max(MOST_SAMPLES, together)
        sizes = _divisors(self.sequences(mesh))
        return tuple(size for size in sizes if size <= most and size % together == 0)

    def sequences(self, mesh: Mesh) -> int:
        """Sequences of a rank in a step; 0 if they are not whole."""
        of_all = self.sequence_length * mesh.dp_replicate * mesh.dp_shard
        return 0 if self.tokens_per_step % of_all else self.tokens_per_step // of_all


SHORTEST_PART = 4096
"""Tokens of a sequence on a rank of cp: with fewer, the search leaves sequences whole."""
MOST_SAMPLES = 64
"""The largest micro batch that the search tries, unless more sequences stay together."""


def sharing_experts(
    choice: Choice, inventory: Inventory, *, over_tp: Callable[[], bool] | None = None
) -> Iterator[Choice]:
    """The choice with experts over two ranks of dp_shard and cp and more, as many as divide both.

    Also over ranks of tp, which have shards of sequences, if `over_tp` is true of them.
    """
    numbers = {num_stacked(module) for module in dispatchable(inventory)}
    if not numbers or choice.is_compiled:
        return
    mesh, ranks = choice.mesh, choice.mesh.dp_shard * choice.mesh.cp
    ways = [(mesh, ranks)]
    if over_tp is not None and over_tp():
        ways.append((replace(mesh, rules=Rules.EXPERTS), ranks * mesh.tp))
    for way, num_ranks in ways:
        for size in _divisors(num_ranks)[1:]:
            if all(number % size == 0 for number in numbers):
                yield replace(choice, mesh=way, ep=size)


def sizes_of_tp(num_devices: int, node: int) -> Iterator[int]:
    """Sizes of tp that keep a group inside a node."""
    return (one for one in range(2, node + 1) if num_devices % one == 0 and node % one == 0)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)
