"""The calls of kernels that a model's attention makes under a plan."""

from __future__ import annotations

from planc.devices.attention_kernels import AttentionCall, AttentionSetting
from planc.inventory.schema import Inventory
from planc.plan.data import Packing
from planc.plan.spec import AttentionKernel, Plan
from planc.vocab import SEES_LATER_TOKENS, SOFTCAP, Task


def sees_later_tokens(inventory: Inventory) -> bool:
    """Whether attention is to all tokens, as the model itself asks for."""
    return any(SEES_LATER_TOKENS.intersection(attention.extras) for attention in inventory.attentions)


def attention_kind(plan: Plan, inventory: Inventory) -> str:
    """The kind of attention, as `AttentionSetting` has it."""
    if plan.context_parallel is not None:
        return plan.context_parallel.rotate.value
    if plan.model.attention is AttentionKernel.EAGER:
        return "eager"
    if plan.model.task.task is Task.SEQ2SEQ_LM:
        return "encoder_decoder"
    return "bidirectional" if sees_later_tokens(inventory) else "plain"


def isolates_documents(plan: Plan, inventory: Inventory) -> bool:
    """Whether attention is inside of each document: without it, tokens that see later ones see padding."""
    is_padded = plan.data.packing is Packing.NONE
    kind = attention_kind(plan, inventory)
    return plan.data.packing.isolates or (is_padded and kind in ("bidirectional", "encoder_decoder"))


def attention_calls(plan: Plan, inventory: Inventory) -> tuple[AttentionCall, ...]:
    """Each kind of call once, in the order of layers; none if attention is the model's own code."""
    if plan.model.attention is AttentionKernel.EAGER:
        return ()
    setting = AttentionSetting(
        kind=attention_kind(plan, inventory),
        dtype=(plan.fsdp.param_dtype if plan.fsdp else None) or plan.model.dtype,
        sequence_length=plan.data.sequence_length,
        isolates=isolates_documents(plan, inventory),
        is_compiled=plan.compile is not None,
    )
    calls = (
        setting.call(
            head_dim=one.head_dim,
            value_dim=one.value_dim,
            window=one.window,
            has_softcap=SOFTCAP in one.extras,
        )
        for one in inventory.attentions
    )
    return tuple(dict.fromkeys(calls))
