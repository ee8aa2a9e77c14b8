"""FLOPs of a token, of a step and of a rank, counted from the modules.

Convention (PaLM, appendix B, as in torchtitan): 6 per token for every element of a weight that tokens are
multiplied with, 2 forward and 4 backward; and 6 (d_qk + d_v) per head for every position that a token attends
to, which is the whole sequence or the window: causal masking halves nothing. Embeddings are looked up, not
multiplied, and count only where the head is tied to them. Norms, rotary positions and the loss count nothing.
"""

from __future__ import annotations

from math import prod

from planc.estimate.rank_work import RankWork
from planc.estimate.selective import kept_results
from planc.inventory.schema import LINEAR_KINDS, Attention, Kind, Module
from planc.record import record

_FORWARD, _BOTH = 2, 6


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
    for fqn, products in _products(work):
        per_token += _BOTH * products
        if work.region(fqn) is not None and fqn not in kept:
            again += _FORWARD * products
    return Flops(
        per_token=per_token,
        executed_per_token=per_token + again,
        tokens_per_step=work.tokens_per_step,
        world_size=work.graph.world_size,
        counts_all_experts=any(
            module.kind is Kind.OTHER and _weights(module) for module in work.inventory.modules
        ),
    )


def _products(work: RankWork) -> list[tuple[str, int]]:
    """(module, multiply-adds of its forward for one token)."""
    found = [(module.fqn, _weights(module)) for module in work.inventory.modules]
    found.extend((one.fqn, _attention(one, work.sequence_length)) for one in work.inventory.attentions)
    return found


def _weights(module: Module) -> int:
    if module.kind not in (*LINEAR_KINDS, Kind.OTHER):
        return 0
    return sum(prod(parameter.shape) for parameter in module.parameters if len(parameter.shape) > 1)


def _attention(attention: Attention, length: int) -> int:
    width = attention.head_dim + (attention.value_dim or attention.head_dim)
    return attention.num_heads * width * min(length, attention.window or length)
