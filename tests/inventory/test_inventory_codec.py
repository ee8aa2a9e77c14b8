from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planc.inventory.codec import dumps, loads
from planc.inventory.files import InventoryError
from planc.inventory.footprint import Footprint
from planc.inventory.schema import Attention, Inventory, Kind, Module, Parameter
from planc.inventory.tree import absolute, relative

MODEL_NAMES = ("tiny-llama", "llama-3.1-8b", "llama-3.1-405b", "qwen3-8b")


def module(fqn: str, *, kind: Kind = Kind.CONTAINER, **fields: object) -> Module:
    return Module(fqn, kind.value.title(), kind, **fields)  # type: ignore[arg-type]


def inventory_of(*modules: Module, attentions: tuple[Attention, ...] = ()) -> Inventory:
    return Inventory(
        config_digest="0" * 64,
        architecture="A",
        model_type="a",
        vocab_size=8,
        hidden_size=4,
        max_positions=None,
        modules=(module(""), *modules),
        attentions=attentions,
    )


def layers(*, windows: tuple[int | None, ...]) -> Inventory:
    modules = [module("layers", kind=Kind.MODULE_LIST)]
    for index in range(len(windows)):
        before = () if index == 0 else (f"layers.{index - 1}",)
        modules.append(module(f"layers.{index}", sources=before, returns=(f"layers.{index}.up",)))
        weight = Parameter("weight", (4, 4))
        modules.append(module(f"layers.{index}.up", kind=Kind.LINEAR, parameters=(weight,), sources=before))
    attentions = tuple(Attention(f"layers.{i}", 2, 1, 2, window) for i, window in enumerate(windows))
    return inventory_of(*modules, attentions=attentions)


def node_names(inventory: Inventory) -> list[str]:
    tree = json.loads(dumps(inventory))["modules"]
    return [node["name"] for node in tree["children"][0]["children"]]


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_shipped_inventory_is_canonical(models: Path, name: str) -> None:
    text = (models / name / "inventory.json").read_text()
    assert dumps(loads(text)) == text


def test_405b_inventory_is_small(models: Path) -> None:
    assert (models / "llama-3.1-405b" / "inventory.json").stat().st_size < 30_000


def test_405b_inventory_loads_every_layer(models: Path) -> None:
    inventory = loads((models / "llama-3.1-405b" / "inventory.json").read_text())
    assert len(inventory.modules) == 1645
    assert len(inventory.attentions) == 126
    assert inventory.num_parameters == 405_853_388_800
    last = inventory.get("model.layers.125.input_layernorm")
    assert last is not None and last.sources == ("model.layers.124",)


def test_equal_layers_share_one_node() -> None:
    assert node_names(layers(windows=(None,) * 5)) == ["0", "1..4"]


def test_alternating_layers_share_two_nodes() -> None:
    inventory = layers(windows=(None, None, 4, None, 4, 4, None))
    assert node_names(inventory) == ["0", "1,3,6", "2,4..5"]
    assert loads(dumps(inventory)) == inventory


def test_nested_lists_round_trip() -> None:
    experts = [
        module(f"layers.{layer}{tail}", kind=Kind.LINEAR if tail else Kind.CONTAINER)
        for layer in range(3)
        for tail in ("", *(f".{expert}" for expert in range(12)))
    ]
    inventory = inventory_of(module("layers", kind=Kind.MODULE_LIST), *experts)
    assert node_names(inventory) == ["0..2"]
    assert loads(dumps(inventory)) == inventory


def test_every_field_round_trips() -> None:
    inventory = replace(
        inventory_of(
            module("embed", kind=Kind.EMBEDDING, parameters=(Parameter("weight", (8, 4)),)),
            module("head", kind=Kind.LINEAR, parameters=(Parameter("weight", (8, 4)),), sources=("embed",)),
            module("scale", unset=("factor", "floor"), flattened=True, passes_input=True, passes_others=True),
            module("up", kind=Kind.LINEAR, activation=Footprint(kept=(8, 16), passing=(6, 12))),
            module("norm", kind=Kind.NORM, footprint=Footprint(kept=(2, 4), passing=(4, 8))),
        ),
        max_positions=64,
        ties=(("embed.weight", "head.weight"),),
        tp_plan=(("head", "colwise"), ("embed", "rowwise")),
        blocks=("head",),
        renumbered=("embed",),
    )
    assert loads(dumps(inventory)) == inventory


def test_dumps_refuses_modules_out_of_order() -> None:
    with pytest.raises(InventoryError, match="depth-first"):
        dumps(inventory_of(module("a"), module("b"), module("a.x")))


@pytest.mark.parametrize(
    ("fqn", "seen_from", "reference"),
    [
        ("m.layers.3.attn.q", "m.layers.3.attn.o", ".q"),
        ("m.layers.2", "m.layers.3.norm", "..-1"),
        ("m.layers.2.mlp.up", "m.layers.3.norm", "..-1.mlp.up"),
        ("m.layers.4", "m.layers.3", ".+1"),
        ("m.embed", "m.layers.0.norm", "...embed"),
        ("m.layers.3.attn.o", "m.layers.3", "attn.o"),
        ("m.layers", "m.layers.3", "."),
        ("m", "m", ""),
        ("m", "", "m"),
    ],
)
def test_reference_is_relative_and_back(fqn: str, seen_from: str, reference: str) -> None:
    assert relative(fqn, seen_from=seen_from) == reference
    assert absolute(reference, seen_from=seen_from) == fqn


def damaged(models: Path, *, old: str, new: str) -> str:
    text = (models / "tiny-llama" / "inventory.json").read_text()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format_version":21', '"format_version":15', "format_version: this planc reads version 21"),
        ('"format_version":21', '"format_version":true', "format_version"),
        ('"vocab_size":260,', "", 'inventory: the key "vocab_size" is missing'),
        ('"vocab_size":260', '"vocab_size":260.0', "vocab_size: not a whole number"),
        ('"vocab_size":260', '"vocab_size":true', "vocab_size: not a whole number"),
        ('"vocab_size":260', '"vocab_size":0', "vocab_size: not a positive whole number"),
        ('"vocab_size":260', '"vocab_size":260,"size":1', 'inventory: unknown key "size"'),
        ('"vocab_size":260', '"vocab_size":260,"vocab_size":1', "occurs twice"),
        (
            '"ties":[]',
            '"ties":[["lm_head.bias","lm_head.weight"]]',
            'ties: "lm_head.bias" is not a parameter',
        ),
        ('"blocks":["model.layers"]', '"blocks":["model.h"]', 'blocks: "model.h" is not a module'),
        ('["lm_head","colwise_gather_output"]', '["lm_head"]', r"tp_plan\[0\]: not a pair"),
        ('"kind":"linear"', '"kind":"conv"', "kind: not one of linear, conv1d, embedding"),
        ('"window":null', '"window":-1', "attention.window: not a whole number"),
        ('"kind":"linear"', '"kind":"linear","flattened":1', "flattened: must be true or absent"),
        ('"window":null', '"windows":null', 'attention: the key "window" is missing'),
        ('"window":null', '"window":null,"value_dim":null', "attention.value_dim: must be a value or absent"),
        ('"attention":{', '"attention":null,"x":{', "attention: not an object"),
        ('"kind":"linear"', '"kind":"linear","routing":null', "routing: must be a value or absent"),
        ('"kind":"linear"', '"kind":"linear","activation":{"kept":[1],"passing":[1,2]}', "kept: not a pair"),
        ('"kind":"linear"', '"kind":"linear","unset":[["x"]]', r"unset\[0\]: not a string"),
        ('"blocks":[', '"own_heads":[{"modules":[[]]}],"blocks":[', r"own_heads.modules\[0\]: not a string"),
        ("[260,128]", "[260,-128]", r"parameters.weight\[1\]: not a whole number"),
        ('"class":"LlamaModel"', '"klass":"LlamaModel"', r'modules.children\[0\]: the key "class"'),
        ('"name":""', '"name":"root"', "modules.name"),
        ('"name":"embed_tokens"', '"name":"embed.tokens"', '"embed.tokens" in "model"'),
        ('"name":"1..3"', '"name":"0..3"', 'two children of "model.layers"'),
        ('"name":"1..3"', '"name":"3..1"', "not an ascending range"),
        ('"name":"1..3"', '"name":"1..999999999"', "not an ascending range"),
        ('"sources":["..embed_tokens"]', '"sources":["..nothing"]', '"model.nothing", which is not a module'),
        ('"sources":["..embed_tokens"]', '"sources":["....x"]', "points nowhere"),
        ('"sources":["..embed_tokens"]', '"sources":"..embed_tokens"', "sources: not an array"),
        ('"config_digest":"', '"config_digest":"x', "config_digest: not a SHA-256"),
    ],
)
def test_damage_is_refused_with_its_place(models: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message):
        loads(damaged(models, old=old, new=new))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 100_000, b"\xff\xfe", '{"a":' + "9" * 5000 + "}"]
)
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(InventoryError):
        loads(text)


def test_expansion_is_bounded(models: Path) -> None:
    bomb = '{"name":"0..9999","class":"A","kind":"container"}'
    for _ in range(3):
        bomb = f'{{"name":"0..9999","class":"A","kind":"container","children":[{bomb}]}}'
    act_fn = '{"name":"act_fn","class":"SiLUActivation","kind":"container"}'
    with pytest.raises(InventoryError, match="more than 200000 modules"):
        loads(damaged(models, old=act_fn, new=bomb))
