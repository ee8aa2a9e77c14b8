"""What only a config.json says: no forward without values shows it. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

_COEFFICIENT = "aux_loss_coef"


def added_losses(config: Mapping[str, object]) -> tuple[str, ...]:
    """The fields of a config.json by which transformers adds the balance of experts to the loss.

    It does so where `output_router_logits` is true, by `router_aux_loss_coef` or, in JetMoE, `aux_loss_coef`.
    """
    if config.get("output_router_logits") is not True:
        return ()
    return tuple(name for name, value in config.items() if _COEFFICIENT in name and value)


def rope_switch(config: Mapping[str, object]) -> int | None:
    """The positions beyond which LongRoPE has other embeddings (dynamic_rope_update in transformers'
    modeling_rope_utils.py); the fewest, where kinds of layers have their own."""
    whole = config.get("rope_parameters")
    if not isinstance(whole, Mapping):
        return None
    of_kinds = [one for one in whole.values() if isinstance(one, Mapping)] or [whole]
    return min(
        (one["original_max_position_embeddings"] for one in of_kinds if one.get("rope_type") == "longrope"),
        default=None,
    )
