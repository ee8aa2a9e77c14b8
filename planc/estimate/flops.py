"""FLOPs of a token, of a step and of a rank, counted from the modules.

Convention (PaLM, appendix B, as in torchtitan): 6 per token for every element of a weight that tokens are
multiplied with, 2 forward, 2 for the gradient of its input and 2 for its own, without those that no trained
parameter needs; and 6 (d_qk + d_v) per head for every position that a token attends
to, which is the whole sequence or the window: causal masking halves nothing. Embeddings are looked up, not
multiplied, and count only where the head is tied to them. Norms, rotary positions and the loss count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.rank_work import RankWork
from planc.estimate.selective import kept_results
from planc.inventory.schema import Kind
from planc.record import record

_FLOPS = 2
"""FLOPs of a multiply-add."""


@record
class Flops:
    """`per_token` is the model's own work; `executed_per_token` includes recomputation."""

    per_token: int
    executed_per_token: int
    tokens_per_step: int
    world_size: int
    counts_all_experts: bool
    """Whether some module has parameters of an unknown kind, such as experts: all count, used or not."""

    @property
    def per_step(self) -> int:
        return self.per_token * self.tokens_per_step

    @property
    def executed_per_rank(self) -> float:
        """What one rank executes in a step; ranks share the work evenly."""
        return self.executed_per_token * self.tokens_per_step / self.world_size


def flops(work: RankWork) -> Flops:
    """The FLOPs of a graph, over all of its ranks."""
    kept = kept_results(work)
    per_token = again = 0
    for fqn, forward, backward in _products(work):
        per_token += _FLOPS * (forward + backward)
        if work.region(fqn) is not None and fqn not in kept:
            again += _FLOPS * forward
    return Flops(
        per_token=per_token,
        executed_per_token=per_token + again,
        tokens_per_step=work.tokens_per_step,
        world_size=work.graph.world_size,
        counts_all_experts=any(
            module.kind is Kind.OTHER and module.num_weights for module in work.inventory.modules
        ),
    )


def _products(work: RankWork) -> Iterator[tuple[str, int, int]]:
    """(module, its multiply-adds for one token in forward, and in backward)."""
    for module in work.inventory.modules:
        frozen = sum(
            weight.num_elements for weight in module.parameters if not work.trains(module, weight.name)
        )
        own = module.num_weights
        yield module.fqn, own, own * (module.fqn in work.flow.inputs) + max(0, own - frozen)
    for attention in work.inventory.attentions:
        products = attention.products(work.sequence_length)
        yield attention.fqn, products, 2 * products * work.is_passed(attention.fqn)
