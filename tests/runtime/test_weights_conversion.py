"""Conversions of weights beyond experts, without ranks: what transformers has saved comes back, both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import ConversionOps, WeightConverter

from planc.modeling.initialization import fresh_copy
from planc.runtime.errors import RunError
from planc.runtime.torch.weights import conversion as weights_conversion
from planc.runtime.torch.weights.conversion import to_checkpoint, to_model
from planc.runtime.torch.weights.files import stored_views
from planc.runtime.torch.weights.views import View, leaf
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config


def saved(folder: Path, model_type: str, architecture: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model whose weights are in `folder`, and a pristine copy of it."""
    (folder / "config.json").write_text(json.dumps(tiny_config(model_type, architecture)))
    config = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    # Saving leaves a text in config.dtype.
    pristine = fresh_copy(model)
    model.save_pretrained(folder)
    return model, pristine


def read(view: View) -> torch.Tensor:
    out = torch.empty(view.shape)
    view.fill(out, view.whole)
    return out


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("gpt_neox", "GPTNeoXForCausalLM"),
        ("granitemoe", "GraniteMoeForCausalLM"),
        ("hrm_text", "HrmTextForCausalLM"),
        ("inkling2_text", "Inkling2ForCausalLM"),
        ("olmo_hybrid", "OlmoHybridForCausalLM"),
        ("nemotron_h", "NemotronHForCausalLM"),
    ],
)
def test_what_transformers_saved_comes_back_both_ways(
    model_type: str, architecture: str, tmp_path: Path
) -> None:
    model, pristine = saved(tmp_path, model_type, architecture)
    found = to_model(pristine, stored_views(tmp_path))
    assert (found.problems, found.unexpected, found.ignored) == ([], [], [])
    whole = model.state_dict()
    assert [name for name, view in found.views.items() if not torch.equal(read(view), whole[name])] == []
    assert whole.keys() - found.views.keys() <= {"lm_head.weight"}
    again, before = to_checkpoint(pristine, found.views), load_file(tmp_path / "model.safetensors")
    assert again.keys() == before.keys()
    assert [key for key, view in again.items() if not torch.equal(read(view), before[key])] == []


def test_weights_of_a_model_without_its_head_get_its_prefix(tmp_path: Path) -> None:
    """The first checkpoints of GPT-2 are of the model without a head, which is tied."""
    _, pristine = saved(tmp_path, "gpt2", "GPT2LMHeadModel")
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    assert bare.keys() != tensors.keys()
    save_file(bare, tmp_path / "model.safetensors")
    found = to_model(pristine, stored_views(tmp_path))
    assert found.views.keys() == tensors.keys()
    assert found.unexpected == []


def test_old_buffers_are_left_out_as_transformers_does(tmp_path: Path) -> None:
    _, pristine = saved(tmp_path, "llama", "LlamaForCausalLM")
    tensors = load_file(tmp_path / "model.safetensors")
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**tensors, old: torch.zeros(8)}, tmp_path / "model.safetensors")
    found = to_model(pristine, stored_views(tmp_path))
    assert (found.ignored, found.unexpected, found.problems) == ([old], [], [])


def test_two_tensors_for_one_are_a_problem(tmp_path: Path) -> None:
    _, pristine = saved(tmp_path, "gpt2", "GPT2LMHeadModel")
    tensors = load_file(tmp_path / "model.safetensors")
    extra = {"wte.weight": torch.zeros_like(tensors["transformer.wte.weight"])}
    save_file({**tensors, **extra}, tmp_path / "model.safetensors")
    found = to_model(pristine, stored_views(tmp_path))
    assert found.problems == ["wte.weight is a duplicate of transformer.wte.weight"]


class Flip(ConversionOps):
    """An operation that transformers does not have, and views do not know."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **_: Any
    ) -> dict[str, Any]:
        [tensors] = input_dict.values()
        return {target_patterns[0]: torch.flip(tensors[0], [0])}

    @property
    def reverse_op(self) -> ConversionOps:
        return Flip()


def test_an_operation_that_slices_cannot_do_is_refused_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pristine = saved(tmp_path, "llama", "LlamaForCausalLM")
    monkeypatch.setattr(
        weights_conversion,
        "get_model_conversion_mapping",
        lambda model: [WeightConverter("mlp.up_proj.weight", "mlp.up_proj.weight", operations=[Flip()])],
    )
    stored = stored_views(tmp_path)
    with pytest.raises(RunError, match=r"cannot convert .*up_proj\.weight of LlamaForCausalLM.*torch\.flip"):
        to_model(pristine, stored)
    pristine._weight_conversions = weights_conversion.get_model_conversion_mapping(pristine)
    with pytest.raises(RunError, match=r"cannot convert .* of LlamaForCausalLM.*torch\.flip"):
        to_checkpoint(pristine, stored)


def on_meta(model_type: str, architecture: str) -> PreTrainedModel:
    config = {**tiny_config(model_type, architecture)}
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )
    return model


def unread(shapes: Mapping[str, Sequence[int]]) -> dict[str, View]:
    return {name: leaf(name, shape=shape, read=lambda _: torch.empty(0)) for name, shape in shapes.items()}


def test_no_architecture_has_a_conversion_that_slices_cannot_do() -> None:
    """What a run refuses as it loads weights, `planc check` has not foreseen."""
    converted = 0
    for model_type, architecture in architectures().items():
        model = on_meta(model_type, architecture)
        if not any(isinstance(one, WeightConverter) for one in get_model_conversion_mapping(model)):
            continue
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        stored = to_checkpoint(model, unread(shapes))
        found = to_model(model, unread({key: view.shape for key, view in stored.items()}))
        assert {name: view.shape for name, view in found.views.items()} == shapes, model_type
        assert (found.problems, found.unexpected) == ([], []), model_type
        converted += 1
    assert converted > 30


def test_an_index_of_other_files_is_refused(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, "llama", "LlamaForCausalLM")
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], "absent.weight": first}}))
    with pytest.raises(RunError, match=f"{first} does not contain absent.weight"):
        stored_views(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"same.weight": torch.zeros(2), name: torch.zeros(1)}, tmp_path / name)
    index = {"weight_map": {"a.safetensors": "a.safetensors", "b.safetensors": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match=r"has same\.weight in two files"):
        stored_views(tmp_path)
