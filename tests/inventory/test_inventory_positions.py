"""What the probe finds out about positions, against what transformers' own forward shows of real numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from planc.inventory.codec import dumps, loads
from planc.inventory.probe.attention_calls import WITHOUT_MASK, attention_calls
from planc.inventory.probe.forwards import run
from planc.inventory.probe.position_probe import positions_of
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


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("model_type", HALVES)
def test_decoders_that_number_their_tokens_are_found(model_type: str, tmp_path: Path) -> None:
    assert probe(write(tmp_path, model_type=model_type)).positions == COUNTED


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("model_type", OFFSET)
@pytest.mark.parametrize("padding_id", [0, 1, 5])
def test_positions_that_start_behind_the_padding_are_found(
    model_type: str, padding_id: int, tmp_path: Path
) -> None:
    found = probe(write(tmp_path, model_type=model_type, pad_token_id=padding_id)).positions
    assert found == Positions(first=padding_id + 1, uncounted_token=padding_id)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("model_type", ["bert", "electra", "llama", "gpt2", "opt", "phi3", "gemma3_text"])
def test_ordinary_positions_are_found(model_type: str, tmp_path: Path) -> None:
    if model_type not in ("bert", "electra"):
        config = tiny_config(model_type, architectures()[model_type])
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert probe(tmp_path).positions == ORDINARY
    else:
        assert probe(write(tmp_path, model_type=model_type)).positions == ORDINARY


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("mixtral", {"num_experts_per_tok": 1}),
        ("zaya", {}),
        ("inkling_text", {}),
        ("inkling2_text", {}),
    ],
)
def test_what_is_sorted_for_experts_or_told_by_distance_is_not_a_position(
    model_type: str, fields: dict[str, object], tmp_path: Path
) -> None:
    """With one expert a token, experts number as many slots as there are tokens. Inkling's attention has a
    bias by distance, which is the same wherever a document begins."""
    config = tiny_config(model_type, architectures()[model_type]) | fields
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert probe(tmp_path).positions == ORDINARY


class Counting(LlamaForCausalLM):
    """Adds to what it makes of a token its number among the tokens that it sees, as `numbers` has them."""

    numbers: Callable[[int, int], Tensor]

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.own_positions = torch.nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, input_ids: Tensor, **options: Any) -> Any:
        hidden = self.model.embed_tokens(input_ids)
        numbered = self.own_positions(type(self).numbers(*input_ids.shape).to(input_ids.device))
        return super().forward(inputs_embeds=hidden + numbered.view(*hidden.shape), **options)


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        (lambda batch, length: torch.arange(length).expand(batch, length), True),
        (lambda batch, length: torch.arange(length).repeat(batch), True),
        (lambda batch, length: torch.zeros(batch, length, dtype=torch.long), False),
    ],
    ids=["by sequence", "one sequence after the other", "none"],
)
def test_a_model_that_counts_is_found_however_it_writes_the_numbers(
    numbers: Callable[[int, int], Tensor], counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "numbers", staticmethod(numbers), raising=False)
    config = AutoConfig.for_model("llama", **sizes_of("llama"))
    with attention_calls():
        with torch.device("meta"):
            model = Counting._from_config(config, attn_implementation=WITHOUT_MASK)
        run(model)
        assert positions_of(model) == Positions(counted_by_model=counts)


@pytest.mark.parametrize(
    "positions",
    [ORDINARY, COUNTED, Positions(first=2, uncounted_token=1), Positions(first=1, uncounted_token=0)],
)
def test_what_was_found_is_saved(positions: Positions, models: Path) -> None:
    inventory = replace(loads((models / "tiny-llama" / "inventory.json").read_bytes()), positions=positions)
    assert loads(dumps(inventory)) == inventory


@pytest.mark.sampled(every=6)
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
