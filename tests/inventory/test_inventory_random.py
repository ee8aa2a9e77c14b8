"""What the probe finds out about random numbers in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.inventory.files import InventoryError
from planc.inventory.probe import random_probe
from planc.inventory.probe.probe import probe
from planc.inventory.small_config import random_fields
from tests.models.tiny import tiny_config
from tests.plans import PLANS

OTHERS = Path(__file__).parents[1] / "catalogue" / "models"


def altered(folder: Path, to: Path, **fields: object) -> Path:
    """The model of `folder` in `to`, with other fields in its config.json."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")
    return to


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("name", "fields", "random"),
    [
        ("tiny-opt", {}, ()),
        ("tiny-opt", {"dropout": 0.1}, ("dropout",)),
        ("tiny-opt", {"layerdrop": 0.5}, ("layerdrop",)),
        ("tiny-dropout", {}, ("attention_dropout",)),
        ("tiny-mixtral", {"router_jitter_noise": 0.1}, ("router_jitter_noise",)),
        # The class has no such dropout, whatever its config says.
        ("tiny-dropout", {"attention_dropout": 0.0, "resid_pdrop": 0.1}, ()),
    ],
)
def test_what_training_draws_is_seen(
    name: str, fields: dict[str, float], random: tuple[str, ...], tmp_path: Path
) -> None:
    assert probe(altered(OTHERS / name, tmp_path, **fields)).random == random


def test_the_defaults_of_a_class_count() -> None:
    assert {"resid_pdrop", "embd_pdrop", "attn_pdrop"} <= set(probe(PLANS / "models" / "tiny-gpt2").random)


def test_a_model_that_draws_without_such_fields_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PhiMoE draws always; that nothing depends on it is known of it, and of no other model."""
    config = tiny_config("phimoe", "PhimoeForCausalLM")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert probe(tmp_path).random == ()
    monkeypatch.setattr(random_probe, "_DRAWS_IN_VAIN", frozenset())
    with pytest.raises(InventoryError, match="draws random numbers in training, which differ between meshes"):
        probe(tmp_path)


def test_fields_are_numbers_other_than_zero() -> None:
    config = {"dropout": 0.1, "attn_pdrop": 0, "moe_token_drop_policy": "probs", "drop": True, "rate": 0.5}
    assert random_fields(config) == ("dropout",)
