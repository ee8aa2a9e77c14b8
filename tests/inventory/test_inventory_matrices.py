"""Which parameters are matrices of hidden layers, and which of them fuse several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planc.inventory.load import load_inventory
from planc.inventory.matrices import FUSED, TRANSPOSED, UNKNOWN_STACK, Matrix, matrices
from tests.models.tiny import tiny_config

PROJECTIONS = {f"self_attn.{name}_proj.weight": () for name in "qkvo"}
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**PROJECTIONS, **{f"mlp.{name}_proj.weight": () for name in ("gate", "up", "down")}}),
    "phi3": (
        "Phi3",
        {
            "self_attn.o_proj.weight": (),
            "self_attn.qkv_proj.weight": (64, 64, 64),
            "mlp.gate_up_proj.weight": (96, 96),
            "mlp.down_proj.weight": (),
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {**PROJECTIONS, "mlp.experts.gate_up_proj": (48, 48), "mlp.experts.down_proj": ()},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        dict.fromkeys(
            ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"), TRANSPOSED
        ),
    ),
    "bloom": (
        "Bloom",
        {
            "self_attention.query_key_value.weight": FUSED,
            "self_attention.dense.weight": (),
            "mlp.dense_h_to_4h.weight": (),
            "mlp.dense_4h_to_h.weight": (),
        },
    ),
    "gpt_oss": (
        "GptOss",
        {**PROJECTIONS, "mlp.experts.gate_up_proj": UNKNOWN_STACK, "mlp.experts.down_proj": UNKNOWN_STACK},
    ),
    # A convolution is none.
    "mamba2": ("Mamba2", {"mixer.in_proj.weight": FUSED, "mixer.out_proj.weight": ()}),
}
"""By model: the matrices of a layer, with the widths of their parts, or why Muon can't take them."""


def of_a_layer(matrix: Matrix) -> tuple[str, Any]:
    _, _, name = matrix.fqn.partition(".0.")
    return name, matrix.problem or matrix.widths


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("model", KNOWN)
def test_a_layer_has_these_matrices_and_nothing_else_is_one(model: str, tmp_path: Path) -> None:
    name, expected = KNOWN[model]
    architecture = name if name.endswith("Model") else f"{name}ForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(model, architecture)))
    inventory = load_inventory(tmp_path, cache_dir=tmp_path / "cache").inventory
    found = [*matrices(inventory)]
    # No embedding, head or router, which are outside of layers or feed experts.
    assert all(".0." in one.fqn or ".1." in one.fqn for one in found)
    assert dict(of_a_layer(one) for one in found if ".0." in one.fqn) == expected
