"""FLOPs of a token, of a step and of a rank, counted from the modules.

Convention (PaLM, appendix B, as in torchtitan): 6 per token for every element of a weight that tokens are
multiplied with, 2 forward, 2 for the gradient of its input and 2 for its own, without those that no trained
parameter needs; of experts, as many weights as a token gets. And 6 (d_qk + d_v) per head for every position
that a token attends to, which is the whole sequence or the window: causal masking halves nothing. Embeddings
are looked up, not multiplied, and count only where the head is tied to them. Norms, rotary positions and the
loss count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.images import encoding_flops
from planc.estimate.rank_work import RankWork
from planc.estimate.selective import kept_results
from planc.graph.sources import reads_pairs
from planc.inventory.products import products_of, products_with
from planc.inventory.routers import routers
from planc.inventory.schema import Inventory, Kind
from planc.record import record
from planc.vocab import parent_of

_FLOPS = 2
"""FLOPs of a multiply-add."""


@record
class Flops:
    """`per_token` is the model's own work; `executed_per_token` includes what is computed again."""

    per_token: int
    executed_per_token: int
    tokens_per_step: int
    world_size: int
    counted_whole: tuple[str, ...]
    """Classes of modules of unknown kinds, such as experts without a known routing: all weights count."""
    has_frozen: bool
    """Whether the gradients of some weights are not computed."""

    @property
    def per_step(self) -> int:
        return self.per_token * self.tokens_per_step

    @property
    def executed_per_rank(self) -> float:
        """The FLOPs that one rank executes in a step; ranks share the work evenly."""
        return self.executed_per_token * self.tokens_per_step / self.world_size


def flops(work: RankWork) -> Flops:
    """The FLOPs of a graph, over all of its ranks."""
    kept = kept_results(work)
    per_token = again = 0
    for fqn, forward, backward in _products(work):
        per_token += _FLOPS * (forward + backward)
        is_head = work.inventory.head is not None and fqn == work.inventory.head.fqn
        if (work.region(fqn) is not None and fqn not in kept) or (is_head and computes_logits_twice(work)):
            again += _FLOPS * forward
    encoding, by_all = encoding_flops(work)
    return Flops(
        per_token=per_token + encoding,
        executed_per_token=per_token + again + by_all,
        tokens_per_step=work.tokens_per_step,
        world_size=work.graph.world_size,
        counted_whole=tuple(sorted(_counted_whole(work.inventory))),
        has_frozen=any(
            not work.trains(module, weight.name)
            for module in work.inventory.modules
            for weight in module.parameters
            if products_with(module, weight)
        ),
    )


def computes_logits_twice(work: RankWork) -> bool:
    """True if chunks come for the log-probabilities of answers, and again for gradients."""
    return work.loss_chunks > 1 and reads_pairs(work.graph)


def _counted_whole(inventory: Inventory) -> set[str]:
    known = {router.fqn for router in routers(inventory)}
    return {
        module.class_name
        for module in inventory.modules
        if module.kind is Kind.OTHER
        and module.routing is None
        and products_of(module)
        and module.fqn not in known
    }


def _products(work: RankWork) -> Iterator[tuple[str, int, int]]:
    """(module, its multiply-adds for one token in forward, and in backward)."""
    for module in work.inventory.modules:
        multiplied = work.module(parent_of(module.fqn)) if work.multiplies_again(module) else module
        own = products_of(multiplied)
        trained = sum(
            products_with(module, weight) for weight in module.parameters if work.trains(module, weight.name)
        )
        yield module.fqn, own, own * (multiplied.fqn in work.flow.inputs) + trained
    for attention in work.inventory.attentions:
        products = attention.products(work.sequence_length)
        yield attention.fqn, products, 2 * products * work.is_passed(attention.fqn)
