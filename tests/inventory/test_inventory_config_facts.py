"""What is read off a config.json."""

from __future__ import annotations

import pytest

from planc.inventory.config_limits import added_losses, rope_switch


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


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
SHORT = {"rope_type": "longrope", "original_max_position_embeddings": 128}
PLAIN = {"rope_type": "default", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("parameters", "switch"),
    [
        (LONG, 4096),
        (PLAIN, None),
        (None, None),
        ({"full_attention": LONG, "sliding_attention": SHORT, "other": PLAIN}, 128),
    ],
)
def test_longrope_switches_at_its_original_positions(parameters: object, switch: int | None) -> None:
    assert rope_switch({"rope_parameters": parameters}) == switch
