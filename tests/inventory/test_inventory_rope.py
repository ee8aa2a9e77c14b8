"""How far config.json says that rotary embeddings reach."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planc.inventory.rope import rope_of

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
PLAIN = {"rope_type": "default"}
PHI = {"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}


@pytest.mark.parametrize(
    ("config", "positions", "reached"),
    [
        ({"rope_parameters": YARN}, 64, 256),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 1e4}, 100, 250),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 2048, 4096),
        ({"rope_parameters": LLAMA3}, 131_072, 131_072),
        ({"rope_parameters": LLAMA3}, 8192, 65_536),
        ({"rope_scaling": PHI, "original_max_position_embeddings": 4096}, 131_072, 131_072),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, 64, 64),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": YARN}},
            64,
            64,
        ),
        ({"rope_parameters": {"rope_type": "yarn", "factor": None}}, 64, 64),
    ],
)
def test_positions_are_the_original_ones_times_the_factor(
    config: Mapping[str, object], positions: int, reached: int
) -> None:
    rope = rope_of(config)
    assert rope is not None
    assert rope.reach(positions) == reached


def test_a_config_without_rotary_embeddings_states_none() -> None:
    assert rope_of({"n_positions": 1024}) is None
