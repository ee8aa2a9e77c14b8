"""What the probe shows of encoder-decoders, and which it refuses: each by a small model of its own class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.vocab import Task
from tests.plans import PLANS

BART: dict[str, Any] = json.loads(
    (PLANS / "models/tiny-bart-encoder-decoder/config.json").read_text(encoding="utf-8")
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another start": (
        {"architectures": ["MBartForConditionalGeneration"], "model_type": "mbart"},
        "gives its decoder other tokens than the start token and the labels before each",
    ),
    "no start": ({"decoder_start_token_id": None}, "has no `decoder_start_token_id`"),
    "a start beyond the vocabulary": (
        {"decoder_start_token_id": 300},
        "has 300 for `decoder_start_token_id`, and the vocabulary has 264 tokens",
    ),
    "a start below it": ({"decoder_start_token_id": -1}, "has -1 for `decoder_start_token_id`"),
    "padding beyond it": ({"pad_token_id": 264}, "has 264 for `pad_token_id`"),
    "no padding": ({"pad_token_id": None}, "has no `pad_token_id`"),
    "one stack": ({"is_encoder_decoder": False}, "`is_encoder_decoder` is false"),
    "blocks": (
        {
            "architectures": ["BigBirdPegasusForConditionalGeneration"],
            "attention_type": "block_sparse",
            "model_type": "bigbird_pegasus",
        },
        "`attention_type` is block_sparse",
    ),
}


def written(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(BART | changes), encoding="utf-8")
    return folder


def test_a_decoder_reads_its_encoder_next_to_its_own_tokens(tmp_path: Path) -> None:
    # So many layers that equal ones do not run again.
    inventory = probe(written(tmp_path, encoder_layers=6, decoder_layers=6))
    assert (inventory.task, inventory.padding_token, inventory.start_token) == (Task.SEQ2SEQ_LM, 1, 2)
    bypassed = {module.fqn: module.bypassed_containers for module in inventory.modules if module.bypassed}
    attentions = [f"model.decoder.layers.{number}.encoder_attn" for number in range(6)]
    assert bypassed == {f"{one}.{name}_proj": (one,) for one in attentions for name in "kv"}
    extras = {attention.fqn: attention.extras for attention in inventory.attentions}
    assert len(extras) == 18 and inventory.own_attentions == ()
    assert {fqn for fqn, extra in extras.items() if not extra} == {
        f"model.decoder.layers.{number}.self_attn" for number in range(6)
    }


def test_code_that_needs_values_is_named(tmp_path: Path) -> None:
    led = {"architectures": ["LEDForConditionalGeneration"], "model_type": "led", "attention_window": 8}
    with pytest.raises(InventoryError) as caught:
        probe(written(tmp_path, **led))
    assert "its code depends on the values of tensors" in caught.value.message
    assert caught.value.help is not None and "(line " in caught.value.help
    assert ".any().item()`" in caught.value.help and "of modeling_led.py)" in caught.value.help


@pytest.mark.parametrize("kind", REFUSED)
def test_a_class_that_decodes_otherwise_is_refused(kind: str, tmp_path: Path) -> None:
    changes, message = REFUSED[kind]
    with pytest.raises(InventoryError) as caught:
        probe(written(tmp_path, **changes))
    assert message in caught.value.message
