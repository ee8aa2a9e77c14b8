"""What the probe finds out about attention beyond its heads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from planc.api import check_source
from planc.inventory.codec import dumps, loads
from planc.inventory.files import InventoryError
from planc.inventory.head_shares import Packed, PerHead
from planc.inventory.known import KnownModels
from planc.inventory.probe.attention_calls import attention_extras
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Attention
from planc.source import SourceFile
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

ROOT = Path(__file__).parents[2]
SHIPPED, OTHERS = ROOT / "plans" / "models", ROOT / "tests" / "catalogue" / "models"
_PLAN = """\
model {{
  hf = "{folder}"
  attention = {attention}
}}
data {{
  source = python_stdlib()
  sequence_length = 32
  micro_batch = 4
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 10
}}
"""


def attentions(folder: Path) -> tuple[Attention, ...]:
    return probe(folder).attentions


@pytest.mark.sampled(every=2)
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


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(
    ("folder", "is_fixed"),
    [
        (SHIPPED / "tiny-llama", False),
        (SHIPPED / "qwen3-8b", False),
        (
            SHIPPED / "tiny-phi3",
            False,
        ),  # one projection, cut into queries, keys and values, if it counts fewer
        (OTHERS / "tiny-olmo2", True),  # norms over all heads
        (OTHERS / "tiny-neox", False),  # one projection too, but head by head
        (OTHERS / "tiny-hrm", False),  # a gate per head
        (OTHERS / "tiny-opt", False),  # takes tokens for heads, and raises nothing, unless it counts fewer
        (OTHERS / "tiny-stablelm", False),  # raises in a view, unless it counts fewer
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
        replace(
            one,
            value_dim=4,
            extras=("softcap",),
            fixed_heads=True,
            counts=("a", "b.c"),
            packed=(Packed("d", (8, 4)),),
            per_head=(PerHead("e", 1),),
        )
        for one in inventory.attentions
    )
    changed = replace(inventory, attentions=odd)
    assert loads(dumps(changed)) == changed


def test_a_fact_that_says_nothing_is_refused() -> None:
    text = (OTHERS / "tiny-olmo2" / "inventory.json").read_text(encoding="utf-8")
    with pytest.raises(InventoryError, match="fixed_heads"):
        loads(text.replace('"fixed_heads":true', '"fixed_heads":false'))


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize(
    ("model_type", "counts"),
    [
        ("bloom", ("num_heads",)),
        ("dbrx", ("hidden_size", "num_key_value_heads")),
        ("gpt2", ("split_size",)),
        ("gpt_neo", ("attention.num_heads",)),
        ("gpt_neox_japanese", ("num_attention_heads",)),
        ("gptj", ("num_attention_heads",)),
        ("mpt", ("n_heads",)),
        ("openai-gpt", ("n_head", "split_size")),
        ("opt", ("num_heads",)),
        ("persimmon", ("num_heads",)),
        ("phi3", ("num_key_value_heads", "config.num_attention_heads")),
        ("stablelm", ("num_heads", "num_key_value_heads")),
        ("xglm", ("embed_dim", "num_heads")),
    ],
)
def test_the_head_counts_that_make_shares_add_up_are_found(
    model_type: str, counts: tuple[str, ...], tmp_path: Path
) -> None:
    inventory = probe(tiny_folder(model_type, tmp_path))
    heads = [*inventory.attentions, *inventory.own_heads]
    assert {(one.counts, one.num_heads) for one in heads} == {(counts, 4)}
    assert not any(one.fixed_heads for one in inventory.attentions)
    assert [one.fqn for one in inventory.own_heads] == list(inventory.own_attentions)
    assert loads(dumps(inventory)) == inventory


@pytest.mark.parametrize("model_type", ["bitnet", "codegen"])
def test_no_counts_are_guessed(model_type: str, tmp_path: Path) -> None:
    """A norm over all heads, and blocks of fused heads: their shares do not add up with anything that is
    tried."""
    inventory = probe(tiny_folder(model_type, tmp_path))
    assert inventory.own_heads == ()
    assert all(one.fixed_heads and not one.counts for one in inventory.attentions)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    ("model_type", "changes", "packed"),
    [
        ("gpt2", {}, {Packed("c_attn", (64, 64, 64))}),
        ("mpt", {}, {Packed("Wqkv", (64, 64, 64))}),
        ("dbrx", {}, {Packed("Wqkv", (64, 32, 32))}),
        ("phi3", {}, {Packed("qkv_proj", (64, 64, 64))}),
        ("phi3", {"num_key_value_heads": 2}, {Packed("qkv_proj", (64, 32, 32))}),
        ("bloom", {}, set()),
        ("gpt_neox", {}, set()),
    ],
)
def test_what_a_fused_projection_holds_is_found(
    model_type: str, changes: Mapping[str, object], packed: set[Packed], tmp_path: Path
) -> None:
    """Or that it holds queries, keys and values head by head, which nothing says."""
    inventory = probe(tiny_folder(model_type, tmp_path, **changes))
    assert {held for one in inventory.known_heads for held in one.packed} == packed
    assert loads(dumps(inventory)) == inventory


@pytest.mark.parametrize(
    ("model_type", "per_head"),
    [("bloom", PerHead("alibi", 0, is_per_sample=True)), ("mpt", PerHead("position_bias", 0))],
)
def test_arguments_with_a_value_for_each_head_are_found(
    model_type: str, per_head: PerHead, tmp_path: Path
) -> None:
    inventory = probe(tiny_folder(model_type, tmp_path))
    assert {one.per_head for one in inventory.own_heads} == {(per_head,)}
    assert loads(dumps(inventory)) == inventory


def test_norms_of_single_heads_that_a_rank_would_confuse_stay_whole(tmp_path: Path) -> None:
    folder = tiny_folder("stablelm", tmp_path, qk_layernorm=True)
    assert {(one.fixed_heads, one.counts) for one in attentions(folder)} == {(True, ())}


def tiny_folder(model_type: str, folder: Path, **changes: object) -> Path:
    config = {**tiny_config(model_type, architectures()[model_type]), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_model_that_shows_positions_their_labels_is_refused(tmp_path: Path) -> None:
    # CPM-Ant's attention is its own code, and causal for none of the tokens that a forward gets.
    config = json.dumps(CONFIG_MAPPING["cpmant"]().to_dict() | {"architectures": ["CpmAntForCausalLM"]})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InventoryError, match="CpmAntForCausalLM is not causal"):
        probe(tmp_path)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("model_type", "switch"),
    [("llama", "is_causal"), ("gemma2", "use_bidirectional_attention"), ("bert", "is_decoder")],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_switch_to_later_tokens_is_refused_with_every_attention(
    model_type: str, switch: str, attention: str, tmp_path: Path
) -> None:
    architecture = architectures().get(model_type, "BertLMHeadModel")
    config = tiny_config(model_type, architecture) | {switch: switch == "use_bidirectional_attention"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = _PLAN.format(attention=attention, folder=tmp_path.name)
    checked = check_source(
        SourceFile("x.plan", plan),
        base=tmp_path.parent,
        models=KnownModels(tmp_path.parent, tmp_path / "cache"),
    )
    assert [one.code.code for one in checked.diagnostics if one.code.code == "P708"] == ["P708"]
    assert all("eager" not in (one.help or "") for one in checked.diagnostics)


@pytest.mark.slow
def test_causal_models_change_earlier_logits_by_rounding_only(tmp_path: Path) -> None:
    for model_type in ("qwen3_moe", "deepseek_v3", "mamba"):
        config = tiny_config(model_type, architectures()[model_type])
        (tmp_path / "config.json").write_text(json.dumps(config))
        probe(tmp_path)
