"""The calls of kernels that a model's attention makes under a plan."""

from __future__ import annotations

from planc.devices.attention_kernels import AttentionCall
from planc.inventory.schema import Inventory
from planc.plan.spec import AttentionKernel, Plan, Rotate


def attention_calls(plan: Plan, inventory: Inventory) -> tuple[AttentionCall, ...]:
    """Each kind of call once, in the order of layers; none if attention is the model's own code."""
    if plan.model.attention is AttentionKernel.EAGER:
        return ()
    dtype = (plan.fsdp.param_dtype if plan.fsdp else None) or plan.model.dtype
    length, context = plan.data.sequence_length, plan.context_parallel
    rotate = context.rotate if context is not None and plan.mesh.cp > 1 else None
    # Ranks with whole sequences compute each document by itself, unless it is compiled.
    has_whole = rotate in (None, Rotate.ULYSSES) and plan.compile is None
    masks_documents = plan.data.packing.isolates and not has_whole
    found = (
        AttentionCall(
            dtype,
            attention.head_dim,
            attention.value_dim or attention.head_dim,
            masks_documents or (attention.window is not None and attention.window < length),
        )
        for attention in inventory.attentions
    )
    return tuple(dict.fromkeys(found))
