"""Which fields of a config.json add to the loss."""

from __future__ import annotations

import pytest

from planc.inventory.added_losses import added_losses


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"output_router_logits": True, "router_aux_loss_coef": 0.02}, ("router_aux_loss_coef",)),
        ({"output_router_logits": True, "aux_loss_coef": 0.01, "z_loss": 1}, ("aux_loss_coef",)),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.0}, ()),
        ({"output_router_logits": False, "router_aux_loss_coef": 0.02}, ()),
        ({"router_aux_loss_coef": 0.02}, ()),
    ],
)
def test_a_coefficient_counts_where_router_logits_are_asked_for(
    config: dict[str, object], found: tuple[str, ...]
) -> None:
    assert added_losses(config) == found
