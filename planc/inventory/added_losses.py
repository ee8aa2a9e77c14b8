"""What a model's own loss has beside cross-entropy. No torch here."""

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
