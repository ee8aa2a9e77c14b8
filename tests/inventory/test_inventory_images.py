"""What the probe shows of a checkpoint with an image encoder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from planc.inventory import codec
from planc.inventory.files import InventoryError
from planc.inventory.probe import image_probe
from planc.inventory.probe.probe import probe
from planc.inventory.schema import ImageEncoder
from planc.modeling.language_part import image_positions
from planc.vocab import ImageShape, Task
from tests.dist.test_image_training import MODELS
from tests.plans import PLANS

TINY = PLANS / "models/tiny-qwen2.5-vl"
CONFIG: dict[str, Any] = json.loads((TINY / "config.json").read_text(encoding="utf-8"))


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", MODELS)
def test_the_language_part_is_a_causal_model_of_its_own(kind: str, tmp_path: Path) -> None:
    inventory = probe(written(tmp_path, MODELS[kind]))
    assert inventory.task is Task.CAUSAL_LM and inventory.blocks == ("model.language_model.layers",)
    assert inventory.architecture == MODELS[kind]["architectures"][0]
    assert not any("visual" in name for name in inventory.names())
    assert len(inventory.attentions) == 3 and inventory.own_attentions == ()
    # transformers has no such plan of Qwen3-VL.
    assert ("model.language_model.layers.*.self_attn.q_proj" in dict(inventory.tp_plan)) is (
        kind != "qwen3_vl"
    )
    assert inventory.images is not None
    assert (inventory.images.token, inventory.images.patch, inventory.images.outputs) == (
        260,
        4,
        3 if kind == "qwen3_vl" else 1,
    )
    assert codec.loads(codec.dumps(inventory)) == inventory


def test_an_encoder_is_described_by_its_sizes(tmp_path: Path) -> None:
    inventory = probe(written(tmp_path, CONFIG))
    expected = ImageEncoder(260, patch=4, merge=2, frames=2, num_parameters=54_944, width=32, inner=96)
    assert inventory.images == expected
    assert codec.loads((TINY / "inventory.json").read_text(encoding="utf-8")).images == expected


def test_flat_files_are_read_as_published(tmp_path: Path) -> None:
    """Those on the Hub have the language model's values at the top, and Qwen's name of the rotation."""
    flat = {**CONFIG, **CONFIG["text_config"], "model_type": "qwen2_5_vl"}
    rope = flat.pop("rope_parameters")
    del flat["text_config"]
    flat |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    found, whole = probe(written(tmp_path, flat)), probe(TINY)
    assert found.modules == whole.modules and found.images == whole.images


@pytest.mark.parametrize("token", [-1, 264])
def test_a_token_beyond_the_vocabulary_is_refused(token: int, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=f"has {token} for `image_token_id`, and the vocabulary has 264"):
        probe(written(tmp_path, {**CONFIG, "image_token_id": token}))


def test_other_positions_than_the_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(*arguments: Any, **settings: Any) -> Any:
        places, positions = image_positions(*arguments, **settings)
        return places, positions + 1

    monkeypatch.setattr(image_probe, "image_positions", shifted)
    with pytest.raises(InventoryError, match="gives the tokens of images other positions than planc does"):
        probe(written(tmp_path, CONFIG))


def test_positions_go_on_behind_the_longer_side() -> None:
    shape = ImageShape(height=16, width=24, patch=4, merge=2, frames=2)
    tokens = torch.tensor([[1, 1, *[260] * 6, 1, 1]])
    places, positions = image_positions(tokens, token=260, shape=shape)
    assert places.tolist() == [[-1, -1, 0, 1, 2, 3, 4, 5, -1, -1]]
    assert positions[:, 0].tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
