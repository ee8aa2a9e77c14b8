"""The number of chunks of a plan's loss, and what keeps a plan from having several."""

from __future__ import annotations

from collections.abc import Iterator

from planc.plan.bind import Assignment, BoundPlan
from planc.plan.spec import Plan
from planc.record import record
from planc.source import Span
from planc.styles.edges import At
from planc.styles.style import edges
from planc.vocab import MeshDim, Shard, outwards

LEAST_TOKENS = 1024
"""The smallest part that `auto` makes: with fewer tokens, the head's matrix multiplications wait for its
weights."""


@record
class Obstacle:
    """The reason that logits can't be computed in parts, and the line of the plan that would change that."""

    reason: str
    help: str
    span: Span | None = None


def local_tokens(plan: Plan) -> int:
    """The tokens of a micro step whose logits a rank computes."""
    return plan.data.micro_batch * plan.data.sequence_length // plan.mesh.cp


def vocab_over(bound: BoundPlan) -> tuple[MeshDim, ...]:
    """The mesh dim that shards the logits' vocabulary, if any."""
    plan, head = bound.plan, bound.inventory.head
    assigned = bound.styles.get(head.fqn) if head else None
    is_sharded = assigned is not None and assigned.use.output == Shard(-1)
    return plan.tensor_parallel.on if plan.tensor_parallel is not None and is_sharded else ()


def num_chunks(bound: BoundPlan) -> int:
    """The number of parts: as written, or what `auto` is for this model and mesh."""
    written = bound.plan.train.loss_chunks
    if written != "auto":
        return written
    inventory, tokens = bound.inventory, local_tokens(bound.plan)
    if any(True for _ in obstacles(bound)):
        return 1
    width = inventory.vocab_size // (bound.plan.mesh.tp if vocab_over(bound) else 1)
    most = min(width // inventory.hidden_size, tokens // LEAST_TOKENS)
    return max((number for number in range(1, most + 1) if tokens % number == 0), default=1)


def obstacles(bound: BoundPlan) -> Iterator[Obstacle]:
    """Yield the obstacles to any number of parts but one."""
    head = bound.inventory.head
    if head is None or bound.inventory.logits is None:
        yield Obstacle(
            "the model does not compute its logits by a linear layer and functions of each logit",
            "remove `loss_chunks`",
        )
        return
    for fqn in outwards(head.fqn):
        if fqn in bound.checkpointed:
            reason, remedy = "backward would compute the parts once more", f'write `"{fqn}" -> none`'
            yield Obstacle(f"`{fqn}` is recomputed, and {reason}", remedy, bound.checkpointed[fqn])
        if fqn in bound.compiled:
            remedy = f"compile other modules than `{fqn}`"
            yield Obstacle(f"`{fqn}` is compiled as a whole", remedy, bound.compiled[fqn])
        assigned = bound.styles.get(fqn)
        if assigned is not None and bound.plan.mesh.tp > 1 and _moves_output(assigned):
            yield Obstacle(f"the output of `{fqn}` is redistributed over tp", _rule(assigned), assigned.span)


def _rule(assigned: Assignment) -> str:
    """The rule to write for a head whose logits all ranks get."""
    override = "override " if assigned.rule is None else ""
    return f'write `{override}"{assigned.fqn}" -> colwise(output = Shard(-1))`'


def _moves_output(assigned: Assignment) -> bool:
    found = edges(assigned.style, assigned.use, is_prepared=False)
    return any(edge.at is At.OUTPUT for edge in found)
