"""The dtypes of tensors: what an inventory says, against what transformers builds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.inventory.codec import dumps, loads
from planc.inventory.load import InventoryError, load_inventory
from planc.inventory.probe.tensor_dtypes import tensor_dtypes, with_dtypes
from planc.inventory.schema import Inventory
from planc.vocab import DType
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

MODELS = Path(__file__).parents[2] / "plans" / "models"
QUICK = ("codegen", "deepseek_v3", "ernie4_5_moe", "llama", "recurrent_gemma")


def built(model_type: str, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    (folder / "config.json").write_text(
        json.dumps(dict(tiny_config(model_type, architectures()[model_type])))
    )
    read = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(read, dtype=dtype)
    return model


def others(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, str]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: str(tensor.dtype).removeprefix("torch.")
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.dtype != dtype
    }


def require_own_dtypes(model_type: str, folder: Path) -> None:
    model = built(model_type, folder, torch.float32)
    known = load_inventory(MODELS / "tiny-llama", cache_dir=folder).inventory
    bare = tuple(replace(known.modules[0], fqn=fqn) for fqn, _ in model.named_modules())
    inventory = replace(known, modules=with_dtypes(bare, tensor_dtypes(model)))
    for dtype in DType:
        own = getattr(torch, dtype.value)
        expected = others(built(model_type, folder, own), own)
        assert {name: str(one) for name, one in inventory.own_dtypes(dtype)} == expected


@pytest.mark.parametrize("model_type", QUICK)
def test_an_inventory_knows_what_is_built_in_another_dtype(model_type: str, tmp_path: Path) -> None:
    require_own_dtypes(model_type, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(architectures()) - {"blt", *QUICK}))
def test_every_inventory_knows_what_is_built_in_another_dtype(model_type: str, tmp_path: Path) -> None:
    """But for blt, of whose default sizes a tiny model is not made."""
    require_own_dtypes(model_type, tmp_path)


def deepseek() -> Inventory:
    return load_inventory(MODELS / "tiny-deepseek-v3", cache_dir=MODELS).inventory


def test_dtypes_are_read_as_they_were_written() -> None:
    # The scaling of positions is read from config.json, whenever an inventory is loaded.
    inventory = replace(deepseek(), rope=None)
    assert inventory.kept_in_float32(DType.BFLOAT16)
    gate = next(module for module in inventory.modules if module.kept_in_half)
    modules = tuple(
        replace(module, widened=("weight",), kept_in_float16=("weight",)) if module is gate else module
        for module in inventory.modules
    )
    changed = replace(inventory, modules=modules)
    assert loads(dumps(changed)) == changed


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"inv_freq":"float32"', '"inv_freq":"float8"', "own_dtypes.inv_freq: not one of float64, float32"),
        ('"inv_freq":"float32"', '"inv_freq":32', "own_dtypes.inv_freq: not one of"),
        ('"own_dtypes":{', '"own_dtypes":[],"x":{', 'unknown key "x"'),
        ('"kept_in_half":["e_score_correction_bias"]', '"kept_in_half":[1]', "kept_in_half[0]: not a string"),
    ],
)
def test_damaged_dtypes_are_refused_with_their_place(old: str, new: str, place: str) -> None:
    text = dumps(deepseek())
    assert old in text
    with pytest.raises(InventoryError) as raised:
        loads(text.replace(old, new, 1))
    assert place in str(raised.value.message)
