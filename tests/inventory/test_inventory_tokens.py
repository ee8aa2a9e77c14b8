"""What the probe sees of the tokens that modules get: flattened ones, and numbers of other rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from planc.inventory.codec import loads
from planc.inventory.probe.forwards import NUM_TOKENS
from planc.inventory.probe.kinds import is_renumbered
from planc.inventory.probe.token_dims import watch_tokens
from tests.catalogue.declared import HERE as CATALOGUE
from tests.plans import PLANS


class Flattens(nn.Module):
    """One layer on [batch, sequence, features], and one on all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.flat, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, states: Tensor) -> Tensor:
        states = self.kept(states)
        return self.act(self.flat(states.reshape(-1, 4))).view(states.shape)


def test_layers_on_all_tokens_are_flattened_and_others_are_not() -> None:
    model, found = Flattens(), set[str]()
    watch_tokens(dict(model.named_modules()), found)
    model(torch.zeros(1, NUM_TOKENS, 4))
    assert found == {"flat"}


def test_states_by_keyword_are_seen() -> None:
    model, found = nn.ModuleDict({"linear": nn.Linear(4, 4)}), set[str]()
    watch_tokens(dict(model.named_modules()), found)
    model["linear"](input=torch.zeros(NUM_TOKENS, 4))
    assert found == {"linear"}


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (PLANS / "models" / "tiny-llama", set()),
        (CATALOGUE / "models" / "tiny-opt", {"fc1", "fc2", "final_layer_norm"}),
        (CATALOGUE / "models" / "tiny-mixtral", {"experts", "gate"}),
    ],
    ids=["llama", "opt", "mixtral"],
)
def test_an_inventory_names_flattened_modules(folder: Path, expected: set[str]) -> None:
    inventory = loads((folder / "inventory.json").read_bytes())
    assert {module.fqn.rpartition(".")[2] for module in inventory.modules if module.flattened} == expected


class Shifted(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids + 2)


class Counted(nn.Embedding):
    def forward(self, mask: Tensor) -> Tensor:
        return super().forward(mask.ne(0).cumsum(dim=1))


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 3.0


class OfShape(nn.Embedding):
    def forward(self, shape: torch.Size) -> Tensor:
        return super().forward(torch.arange(shape[1]))


@pytest.mark.parametrize(
    ("embedding", "expected"),
    [(nn.Embedding, False), (Scaled, False), (Shifted, True), (Counted, True), (OfShape, True)],
)
def test_embeddings_that_look_up_other_rows_are_found(embedding: type[nn.Embedding], expected: bool) -> None:
    assert is_renumbered(embedding(100, 8)) is expected


@pytest.mark.parametrize(("model", "expected"), [("tiny-gemma3n", {"laurel"}), ("tiny-llama", set())])
def test_an_inventory_names_modules_that_add_what_they_take(model: str, expected: set[str]) -> None:
    """Gemma 3n's laurel adds its input to what its layers give; other containers do not."""
    inventory = loads((PLANS / "models" / model / "inventory.json").read_bytes())
    assert {module.fqn.rpartition(".")[2] for module in inventory.modules if module.passes_input} == expected
