"""Facts that follow from a plan: what `expect` asserts, reviewers read and the runtime obeys."""

from __future__ import annotations

from collections.abc import Mapping

from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.plan.train import Contrastive, Preference

DERIVED: Mapping[str, str] = {
    "world_size": "pp x dp_replicate x dp_shard x cp x tp",
    "dp_size": "dp_replicate x dp_shard",
    "gradient_accumulation": "tokens_per_step / (dp_size x micro_batch x sequence_length)",
    "tokens_per_step": "train.tokens_per_step, or dp_size x micro_batch x sequence_length",
    "sequences_per_step": "gradient_accumulation x dp_size x micro_batch",
    "total_tokens": "tokens_per_step x train.steps",
    "parameters": "elements of all parameters, tied ones once",
}
"""The facts that `facts` returns, with the formula of each."""

COUNTS = (
    "world_size",
    "dp_size",
    "gradient_accumulation",
    "tokens_per_step",
    "sequences_per_step",
    "total_tokens",
    "parameters",
    "parameters_per_rank",
    "flops_per_token",
)
"""The facts that are plain numbers, without a unit."""

FLAGS = ("fits",)
"""The facts that are true or false."""

ESTIMATED: Mapping[str, str] = {
    "peak_memory": "peak memory that a rank reserves in a step; see `planc estimate`",
    "parameters_per_rank": "elements of the parameter shards of the rank that holds the most",
    "tp_bytes_per_step": "bytes that a rank sends over tp in a step",
    "fsdp_bytes_per_step": "bytes that a rank sends in a step to gather parameters and reduce gradients",
    "cp_bytes_per_step": "bytes that a rank sends over cp in a step, for attention",
    "sent_bytes_per_step": "bytes that a rank sends in a step, over all collectives",
    "flops_per_token": "6 x matmul weights + 6 x heads x (d_qk + d_v) x sequence, forward and backward",
    "fits": "whether peak_memory is at most 90 % of the memory of `hardware.gpu`",
}
"""The facts that need an estimate, each of the rank with the most of it; `planc.estimate` computes them."""

SIZES = tuple(name for name in ESTIMATED if name not in (*COUNTS, *FLAGS))
"""The facts that are bytes, and so need a unit."""


def sequences_together(plan: Plan) -> int:
    """The sequences of which a micro-batch has a multiple: both of a pair, or those of a group of pairs."""
    loss = plan.train.loss
    if isinstance(loss, Contrastive):
        return 2 * loss.group
    return 2 if isinstance(loss, Preference) else 1


def sequences_per_micro_step(plan: Plan) -> int:
    """Sequences of one forward over all data-parallel ranks."""
    return plan.data.micro_batch * plan.mesh.dp_size


def tokens_per_micro_step(plan: Plan) -> int:
    return sequences_per_micro_step(plan) * plan.data.sequence_length


def tokens_per_step(plan: Plan) -> int:
    """Tokens of one optimizer step; those of one micro step if the plan does not set them."""
    return plan.train.tokens_per_step or tokens_per_micro_step(plan)


def gradient_accumulation(plan: Plan) -> int:
    """Micro steps of one optimizer step, rounded down; a check proves that nothing is lost."""
    return tokens_per_step(plan) // tokens_per_micro_step(plan)


def global_batch(plan: Plan) -> int:
    """Sequences of one optimizer step over all ranks."""
    return gradient_accumulation(plan) * sequences_per_micro_step(plan)


def facts(plan: Plan, inventory: Inventory) -> Mapping[str, int]:
    """Every known fact by the name that `expect` uses. Tokens and sequences are counts, sizes are ranks."""
    steps = plan.train.steps
    return {
        "world_size": plan.mesh.world_size,
        "dp_size": plan.mesh.dp_size,
        "gradient_accumulation": gradient_accumulation(plan),
        "tokens_per_step": tokens_per_step(plan),
        "sequences_per_step": global_batch(plan),
        **({"total_tokens": tokens_per_step(plan) * steps} if steps is not None else {}),
        "parameters": inventory.num_parameters,
    }
