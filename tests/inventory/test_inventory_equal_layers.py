"""Of equal layers a probe runs a few, and finds what it would find if all of them ran."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from planc.inventory.probe.equal_layers import also_in_equal_layers, without_equal_layers
from planc.inventory.probe.probe import probe
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

NUM_LAYERS = 12


class Layer(nn.Module):
    """Adds to its input, and counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.runs: list[int] = []

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.runs.append(1)
        return torch.add(states, self.linear(states))


@pytest.fixture
def stack() -> nn.Module:
    return nn.ModuleDict({"layers": nn.ModuleList(Layer() for _ in range(NUM_LAYERS))})


def deep_config(model_type: str) -> dict[str, object]:
    """A config.json with enough layers for some of each kind to be left out."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = tiny_config(model_type, architectures()[model_type])
    aliases = CONFIG_MAPPING[model_type].attribute_map
    num_layers = {aliases.get("num_hidden_layers", "num_hidden_layers"): NUM_LAYERS}
    return {name: value for name, value in whole.items() if name != "layer_types"} | num_layers


def test_the_first_two_and_the_last_two_run(stack: nn.Module) -> None:
    layers = list(stack["layers"])  # type: ignore[index]
    with without_equal_layers(stack):
        for layer in layers:
            layer(torch.zeros(1, 4))
    assert [bool(layer.runs) for layer in layers] == [True] * 2 + [False] * (NUM_LAYERS - 4) + [True] * 2


def test_modules_of_layers_that_do_not_run_have_an_equal_that_does(stack: nn.Module) -> None:
    with without_equal_layers(stack) as instead:
        found = also_in_equal_layers(("layers.1.linear",), instead)
    assert found == {f"layers.{index}.linear" for index in range(1, NUM_LAYERS - 2)}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("model_type", ["llama", "bloom", "gemma3_text", "deepseek_v3", "stablelm"])
def test_layers_that_do_not_run_change_nothing(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deep_config(model_type)), encoding="utf-8")
    few = probe(tmp_path)
    monkeypatch.setattr(
        "planc.inventory.probe.probe.without_equal_layers", lambda model: contextlib.nullcontext({})
    )
    assert few == probe(tmp_path)
