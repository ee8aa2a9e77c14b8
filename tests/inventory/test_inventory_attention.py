"""What the probe finds out about attention beyond its heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.inventory.attention_extras import attention_extras
from planc.inventory.codec import dumps, loads
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Attention

ROOT = Path(__file__).parents[2]
SHIPPED, OTHERS = ROOT / "plans" / "models", ROOT / "tests" / "catalogue" / "models"


def attentions(folder: Path) -> tuple[Attention, ...]:
    return probe(folder).attentions


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        (SHIPPED / "tiny-llama", ()),
        (SHIPPED / "tiny-gemma2", ("softcap",)),
        (OTHERS / "tiny-gpt-oss", ("s_aux",)),
        (OTHERS / "tiny-dropout", ()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_attention_asks_for_is_noted(folder: Path, extras: tuple[str, ...]) -> None:
    assert {attention.extras for attention in attentions(folder)} == {extras}


@pytest.mark.parametrize(
    ("folder", "is_fixed"),
    [
        (SHIPPED / "tiny-llama", False),
        (SHIPPED / "qwen3-8b", False),
        (SHIPPED / "tiny-phi3", True),  # one projection, cut into queries, keys and values
        (OTHERS / "tiny-neox", False),  # one projection too, but head by head
        (OTHERS / "tiny-hrm", False),  # a gate per head
        (OTHERS / "tiny-opt", True),  # takes tokens for heads, and raises nothing
        (OTHERS / "tiny-stablelm", True),  # raises in a view
        (SHIPPED / "tiny-deepseek-v3", False),  # whole latent values, from which the heads are made
        (OTHERS / "tiny-mqa", False),  # no rank could have a share: another rule reports this
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_attention_is_tried_on_a_share_of_its_heads(folder: Path, is_fixed: bool) -> None:
    assert {attention.fixed_heads for attention in attentions(folder)} == {is_fixed}


def test_values_of_another_size_are_noted() -> None:
    sizes = {(one.head_dim, one.value_dim) for one in attentions(SHIPPED / "tiny-deepseek-v3")}
    assert sizes == {(24, 16)}


def test_trying_shares_changes_nothing_else() -> None:
    assert {(one.num_heads, one.num_kv_heads) for one in attentions(OTHERS / "tiny-opt")} == {(8, 8)}


def test_options_that_ask_for_nothing_are_no_extras() -> None:
    options = {"dropout": 0.0, "is_causal": True, "scaling": 0.1, "softcap": None, "use_cache": False}
    assert attention_extras(object(), options) == ()


def test_every_other_option_is_an_extra() -> None:
    assert attention_extras(object(), {"is_causal": False, "head_mask": 1}) == ("is_causal", "head_mask")


def test_rare_facts_round_trip() -> None:
    inventory = probe(SHIPPED / "tiny-llama")
    odd = tuple(
        replace(one, value_dim=4, extras=("softcap",), fixed_heads=True) for one in inventory.attentions
    )
    changed = replace(inventory, attentions=odd)
    assert loads(dumps(changed)) == changed


def test_a_fact_that_says_nothing_is_refused() -> None:
    text = (SHIPPED / "tiny-phi3" / "inventory.json").read_text(encoding="utf-8")
    with pytest.raises(InventoryError, match="fixed_heads"):
        loads(text.replace('"fixed_heads":true', '"fixed_heads":false'))
