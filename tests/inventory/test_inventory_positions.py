"""What the probe finds out about positions, against what transformers' own forward shows of real numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.inventory.codec import dumps, loads
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Positions
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config
from tests.positions.sizes import HALVES, OFFSET, sizes_of

ORDINARY, COUNTED = Positions(), Positions(counted_by_model=True)


def write(folder: Path, *, model_type: str, **fields: object) -> Path:
    config = AutoConfig.for_model(model_type, **sizes_of(model_type) | fields)
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", HALVES)
def test_decoders_that_number_their_tokens_are_found(model_type: str, tmp_path: Path) -> None:
    assert probe(write(tmp_path, model_type=model_type)).positions == COUNTED


@pytest.mark.parametrize("model_type", OFFSET)
@pytest.mark.parametrize("padding_id", [0, 1, 5])
def test_positions_that_start_behind_the_padding_are_found(
    model_type: str, padding_id: int, tmp_path: Path
) -> None:
    found = probe(write(tmp_path, model_type=model_type, pad_token_id=padding_id)).positions
    assert found == Positions(first=padding_id + 1, uncounted_token=padding_id)


@pytest.mark.parametrize("model_type", ["bert", "electra", "llama", "gpt2", "opt", "phi3", "gemma3_text"])
def test_ordinary_positions_are_found(model_type: str, tmp_path: Path) -> None:
    if model_type not in ("bert", "electra"):
        config = tiny_config(model_type, architectures()[model_type])
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert probe(tmp_path).positions == ORDINARY
    else:
        assert probe(write(tmp_path, model_type=model_type)).positions == ORDINARY


@pytest.mark.parametrize(
    "positions",
    [ORDINARY, COUNTED, Positions(first=2, uncounted_token=1), Positions(first=1, uncounted_token=0)],
)
def test_what_was_found_is_saved(positions: Positions, models: Path) -> None:
    inventory = replace(loads((models / "tiny-llama" / "inventory.json").read_bytes()), positions=positions)
    assert loads(dumps(inventory)) == inventory


@pytest.mark.parametrize("model_type", [*HALVES, *OFFSET])
def test_the_model_itself_takes_the_positions_that_were_found(model_type: str, tmp_path: Path) -> None:
    """With real weights: given those, it computes what it computes by itself; given others, only one that
    counts its tokens still does."""
    folder = write(tmp_path, model_type=model_type)
    found = probe(folder).positions
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()
    ids = torch.tensor([[7, 8, 1, 9, 1, 1, 10, 11]])
    counted = (ids != found.uncounted_token).long() if found.uncounted_token is not None else ids * 0 + 1
    positions = counted.cumsum(1) * counted + found.first - 1
    with torch.no_grad():
        alone = model(input_ids=ids, use_cache=False).logits
        given = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        other = model(input_ids=ids, position_ids=positions.flip(1), use_cache=False).logits
    assert torch.equal(alone, given)
    assert torch.equal(alone, other) == found.counted_by_model
