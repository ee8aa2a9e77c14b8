"""Code of a model outside of its modules: what it needs of the tokens, and whose parameters it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.inventory.probe.probe import probe
from planc.inventory.schema import Inventory
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config


def probed(folder: Path, model_type: str) -> Inventory:
    config = tiny_config(model_type, architectures()[model_type])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return probe(folder)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", ()),
        # It takes the shape from its embedding's output.
        ("gptj", ()),
        # It views hidden states in the shape of the token ids.
        ("gpt2", ("transformer",)),
        # It adds embeddings of its own to each layer.
        ("gemma4_text", ("model",)),
    ],
)
def test_code_around_the_layers_is_tried_on_part_of_the_tokens(
    model_type: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert probed(tmp_path, model_type).needing_all_tokens == expected


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", ()),
        # A mixer reads its convolution's weight, inside of what is between two sums of the residual stream.
        ("bamba", ()),
        # The last layer adds a bias of its attention's.
        ("gpt_neox_japanese", ("gpt_neox_japanese.layers.1.attention",)),
    ],
)
def test_parameters_that_layers_read_are_named_by_their_owner(
    model_type: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert probed(tmp_path, model_type).read_by_layers == expected
