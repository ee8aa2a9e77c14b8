"""The ranks of experts in a draft, in a plan's terms."""

from __future__ import annotations

from math import prod

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.sizes import Mesh
from planc.inventory.schema import Inventory


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
    if prod(on.values()) % size:
        ranks = " x ".join(on) or "one rank"
        return f"{size} is not a factor of {ranks} = {prod(on.values())}"
    return None
