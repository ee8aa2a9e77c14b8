"""The mesh and the batch of a draft: what a file leaves to the launch is worked out, or asked for."""

from __future__ import annotations

import math

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.facts import Fact
from planc.import_configs.kind import NoteKind
from planc.import_configs.leaves import Leaf
from planc.inventory.schema import Inventory
from planc.record import record


@record
class Missing:
    """A value that a plan needs and nothing gives. `at` is the key which leaves it open."""

    what: str
    help: str
    at: Leaf | None = None


@record
class Mesh:
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    is_sharded: bool
    pp: int = 1

    @property
    def dp_size(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The dims of more than one rank."""
        named = (
            ("pp", self.pp),
            ("dp_replicate", self.dp_replicate),
            ("dp_shard", self.dp_shard),
            ("cp", self.cp),
            ("tp", self.tp),
        )
        return tuple((name, size) for name, size in named if size > 1)


def mesh_of(draft: Draft) -> Mesh | Missing:
    """The sizes of all mesh dims, or what is missing for them."""
    tp, cp = draft.take(facts.TP) or 1, draft.take(facts.ULYSSES) or draft.take(facts.CP) or 1
    pp = draft.take(facts.PP) or 1
    is_sharded = _is_sharded(draft)
    given = draft.peek(facts.DP_SHARD) or draft.peek(facts.DP_SIZE)
    at = given.leaf if given is not None else None
    num_data = _num_data(draft, tp=tp, cp=cp, pp=pp)
    if isinstance(num_data, Missing):
        return num_data
    replicate = draft.take(facts.DP_REPLICATE) or 1
    shard = draft.take(facts.DP_SHARD)
    if num_data is None and shard is None and given is not None and given.value is not None:
        num_data = draft.take(facts.DP_SIZE)
    if shard is None:
        if num_data is None:
            what = f"{draft.kind.title}'s file leaves the number of devices to the launch"
            return Missing(what, "pass --gpus N", at)
        if num_data % replicate:
            return Missing(
                f"{num_data} data-parallel ranks are not whole groups of {replicate}", _FITTING, at
            )
        draft.take(facts.DP_SIZE)
        shard = num_data // replicate
    elif num_data is not None and num_data != replicate * shard:
        what = f"dp_replicate {replicate} x dp_shard {shard} is not the {num_data} ranks that remain"
        return Missing(what, _FITTING, at)
    nodes = draft.peek(facts.NODES)
    if shard * cp == 1 and replicate > 1:
        is_sharded = False
    if not is_sharded:
        # Data-parallel ranks without FSDP replicate: the mesh calls them so.
        replicate, shard = replicate * shard, 1
    elif draft.take(facts.HYBRID) and nodes is not None and replicate == 1 and shard % nodes.value == 0:
        replicate, shard = nodes.value, shard // nodes.value
        draft.added("mesh.dp_replicate", "hybrid sharding shards within a node, and replicates over nodes")
    return Mesh(replicate, shard, cp, tp, is_sharded, pp)


def _is_sharded(draft: Draft) -> bool:
    """Whether the file shards parameters: by a key, or by giving the ranks to shard over."""
    shard = draft.peek(facts.DP_SHARD)
    if shard is None or shard.value is None or shard.value == 1 or (own := draft.peek(facts.SHARDED)) is None:
        return bool(draft.take(facts.SHARDED))
    if own.value:
        draft.take(facts.SHARDED)
    else:
        text = f"it does not shard, but `{facts.DP_SHARD.place}` is {shard.value}, which the plan has"
        draft.set_aside(facts.SHARDED, text, kind=NoteKind.WRONG)
    return True


_FITTING = "pass the --gpus that the degrees multiply to"


def _num_data(draft: Draft, *, tp: int, cp: int, pp: int) -> int | Missing | None:
    """The ranks that get different samples, by the world's size or the batch's; None if neither is known."""
    world = draft.take(facts.WORLD_SIZE)
    if world is not None:
        if world % (tp * cp * pp):
            within = f"pp {pp} x tp {tp}" if pp > 1 else f"tp {tp}"
            return Missing(f"{world} devices are not whole groups of {within} x cp {cp}", _FITTING)
        return int(world // (tp * cp * pp))
    batch = [draft.peek(fact) for fact in (facts.GLOBAL_BATCH, facts.MICRO_BATCH, facts.ACCUMULATION)]
    if None not in batch:
        whole, micro, accumulation = (one.value for one in batch if one is not None)
        if whole % (micro * accumulation) == 0:
            return int(whole // (micro * accumulation))
    return None


def devices_per_node(draft: Draft, mesh: Mesh) -> int | None:
    """The devices of a node, where the file has the number of nodes."""
    nodes = draft.peek(facts.NODES)
    world = mesh.dp_size * mesh.cp * mesh.tp * mesh.pp
    if nodes is None or world % nodes.value:
        return None
    return int(world // draft.take(facts.NODES))


def local_batch(draft: Draft, length: int | float | str | Missing) -> int | Missing:
    """The sequences that a rank reads at once: as given, or of so many tokens, with those of a pipeline.

    A pair of answers is two.
    """
    tokens = draft.peek(facts.MICRO_BATCH_TOKENS)
    if tokens is None or not isinstance(length, int) or draft.states(facts.MICRO_BATCH):
        found = required(draft, facts.MICRO_BATCH)
        return found if isinstance(found, Missing) else int(found) * sequences_of_sample(draft)
    if tokens.value % length:
        what = f"{tokens.value} tokens of a micro batch are not whole sequences of {length}"
        return Missing(what, "pass --micro-batch N", tokens.leaf)
    micro = draft.take(facts.MICRO_BATCH_TOKENS) // length
    if (draft.take(facts.PP) or 1) == 1:
        return int(micro)
    draft.give(facts.PIPELINE_MICRO_BATCH, micro, None)
    return int(micro * (draft.take(facts.MICRO_BATCHES) or 1))


def sequences_of_sample(draft: Draft) -> int:
    """The sequences of one sample of a file's batches: two answers, or itself."""
    return 2 if draft.has(facts.PAIRS) else 1


def micro_batch_of(draft: Draft, mesh: Mesh, local_batch: int) -> int:
    """The sequences of one forward: in a pipeline, a part of those that a rank reads at once."""
    if mesh.pp == 1:
        return local_batch
    given = draft.peek(facts.PIPELINE_MICRO_BATCH)
    if given is None:
        draft.added("data.micro_batch", f"1, the default of {draft.kind.title} in a pipeline")
        return 1
    if local_batch % given.value:
        text = f"{local_batch} sequences are not whole micro batches of {given.value}; the plan's have 1"
        draft.set_aside(facts.PIPELINE_MICRO_BATCH, text, kind=NoteKind.WRONG)
        return 1
    return int(draft.take(facts.PIPELINE_MICRO_BATCH))


def tokens_per_step(draft: Draft, mesh: Mesh, *, sequence_length: int, local_batch: int) -> int | None:
    """The tokens of a step over all ranks; None for one micro batch of each."""
    once = mesh.dp_size * local_batch
    tokens = draft.peek(facts.GLOBAL_TOKENS)
    if tokens is not None and tokens.value % (once * sequence_length):
        draft.stop(facts.GLOBAL_TOKENS, f"{tokens.value} tokens are not whole steps of {once} sequences")
    elif tokens is not None:
        return int(draft.take(facts.GLOBAL_TOKENS))
    whole, each = draft.peek(facts.GLOBAL_BATCH), sequences_of_sample(draft)
    accumulation = draft.peek(facts.ACCUMULATION)
    if whole is not None and whole.value * each % once:
        text = f"{whole.value * each} sequences are not whole batches of {mesh.dp_size} ranks x {local_batch}"
        draft.set_aside(facts.GLOBAL_BATCH, text, kind=NoteKind.WRONG)
    elif whole is not None:
        if accumulation is not None and accumulation.value * once != whole.value * each:
            batch = whole.value * each
            text = f"{accumulation.value} x {once} sequences are not the batch of {batch} in the plan"
            draft.set_aside(facts.ACCUMULATION, text, kind=NoteKind.WRONG)
        draft.take(facts.ACCUMULATION)
        return int(draft.take(facts.GLOBAL_BATCH)) * each * sequence_length
    steps = draft.take(facts.ACCUMULATION) or (1 if mesh.pp > 1 else None)
    if steps is None and (least := draft.kind.least_batch) > once:
        world = mesh.dp_size * mesh.cp * mesh.tp * mesh.pp
        steps = max(1, math.ceil(least / local_batch / world))
        draft.added(
            "train.tokens_per_step", f"{steps} micro batches, which {draft.kind.title} accumulates by default"
        )
    return None if steps is None else steps * once * sequence_length


def required(draft: Draft, fact: Fact) -> int | float | str | Missing:
    """The value of a fact that every plan has, or what to pass for it."""
    value = draft.take(fact)
    if value is None:
        at = draft.open.get(fact.name)
        what = "this leaves" if at is not None else "the file leaves"
        return Missing(
            f"{what} `{fact.place}` open", f"pass {fact.option} {'X' if fact is facts.LR else 'N'}", at
        )
    found: int | float | str = value
    return found


def expert_parallel(draft: Draft, mesh: Mesh, inventory: Inventory | None) -> tuple[str, list[str]] | None:
    """The block of a file with experts on several ranks; None for one without, or if no plan has them so.

    Tools take ranks of tp, then of cp, then of dp_shard, as a plan does.
    """
    given = draft.peek(facts.EP)
    if given is None or given.value == 1:
        draft.take(facts.EP)
        return None
    on = [("dp_shard", mesh.dp_shard), ("cp", mesh.cp)]
    if mesh.tp > 1 and draft.take(facts.ETP) == 1:
        on.append(("tp", mesh.tp))
    on = [(name, size) for name, size in on if size > 1]
    if (reason := _reason(draft, mesh, inventory, on=dict(on), size=given.value)) is not None:
        draft.set_aside(facts.EP, reason)
        return None
    return f"expert_parallel on {', '.join(dict(on))}", [f"size = {draft.take(facts.EP)}", "auto"]


def _reason(
    draft: Draft, mesh: Mesh, inventory: Inventory | None, *, on: dict[str, int], size: int
) -> str | None:
    """The reason that a plan keeps experts together."""
    if inventory is not None and all(module.routing is None for module in inventory.modules):
        return "the model has no routed experts"
    if not mesh.is_sharded:
        return "a plan has different experts on ranks over which `fsdp` shards; this file replicates weights"
    sequences = draft.peek(facts.SEQUENCE_PARALLEL)
    if "tp" in on and not (sequences and sequences.value):
        return "without sequence parallelism, ranks of tp would send experts the same tokens"
    if (etp := draft.peek(facts.ETP)) is not None and etp.value not in (1, mesh.tp):
        return f"a plan shards an expert over all {mesh.tp} ranks of tp, or over none"
    if math.prod(on.values()) % size:
        ranks = " x ".join(on) or "one rank"
        return f"{size} is not a factor of {ranks} = {math.prod(on.values())}"
    return None
