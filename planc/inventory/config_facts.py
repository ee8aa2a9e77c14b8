"""Facts that only a config.json has: no forward without values shows them. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_COEFFICIENT = "aux_loss_coef"


def added_losses(config: Mapping[str, object]) -> tuple[str, ...]:
    """The fields of a config.json by which transformers adds an expert-balancing loss.

    It does so if `output_router_logits` is true, with weight `router_aux_loss_coef` or, in JetMoE,
    `aux_loss_coef`.
    """
    if config.get("output_router_logits") is not True:
        return ()
    return tuple(name for name, value in config.items() if _COEFFICIENT in name and value)


def router_loss(config: Mapping[str, object], *, fields: Sequence[str]) -> float | None:
    """The weight of the loss that these fields add; None if config.json leaves it to the class."""
    weight = next((value for name in fields if (value := config.get(name)) is not None), None)
    return float(weight) if isinstance(weight, int | float) else None


def rope_switch(config: Mapping[str, object]) -> int | None:
    """The positions beyond which LongRoPE uses other embeddings (dynamic_rope_update in transformers'
    modeling_rope_utils.py); the smallest number, if kinds of layers have their own."""
    whole = config.get("rope_parameters")
    if not isinstance(whole, Mapping):
        return None
    of_kinds = [one for one in whole.values() if isinstance(one, Mapping)] or [whole]
    return min(
        (one["original_max_position_embeddings"] for one in of_kinds if one.get("rope_type") == "longrope"),
        default=None,
    )
