"""What functions between matrix products keep for backward, as the probe measures it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.bloom.modeling_bloom import BloomGelu
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from planc.inventory.footprint import ONE_OPERATION, RMS_NORM, Footprint
from planc.inventory.probe.footprint_probe import footprint_of, gate_footprint_of
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Inventory

ConfigWriter = Callable[..., Path]


def tensors(kept: int, passing: int) -> Footprint:
    """Of so many tensors in the compute dtype."""
    return Footprint(kept=(2 * kept, 4 * kept), passing=(2 * passing, 4 * passing))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_pytorch_tanh", "mish", "leaky_relu"])
def test_one_operation_keeps_its_input_and_passes_two_gradients(name: str) -> None:
    assert footprint_of(ACT2FN[name]) == ONE_OPERATION == tensors(1, 2)


@pytest.mark.parametrize(
    ("name", "kept", "passing"),
    [
        # Of its input, the tanh and both factors of the last product.
        ("gelu_new", 4, 3),
        ("quick_gelu", 2, 3),
        # What relu keeps is its output.
        ("relu", 0, 3),
        ("relu2", 1, 4),
    ],
)
def test_functions_written_out_keep_more(name: str, kept: int, passing: int) -> None:
    assert footprint_of(ACT2FN[name]) == tensors(kept, passing)


def test_a_function_is_run_as_in_training() -> None:
    """BLOOM's keeps its input in training alone, and computes the rest again."""
    module = BloomGelu().eval()
    assert footprint_of(module) == tensors(1, 6)
    assert not module.training


def test_a_function_on_the_meta_device_has_its_parameters() -> None:
    """The gradient of a slope is as large as the input, before it is summed."""
    with torch.device("meta"):
        module = nn.PReLU()
    assert footprint_of(module) == tensors(1, 3)


def test_parts_in_float32_are_counted_as_such() -> None:
    class Wide(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return nn.functional.silu(value.float()).to(value.dtype)

    assert footprint_of(Wide()) == Footprint(kept=(4, 4), passing=(8, 8))


def test_what_cannot_be_run_or_changes_the_shape_has_none() -> None:
    assert footprint_of(nn.Linear(3, 3)) is None
    assert footprint_of(nn.Flatten()) is None


def test_gates_of_experts_keep_what_their_code_does() -> None:
    """In elements of the first stack's output, which holds a gate and its factor.

    Of them Mixtral keeps that output and one factor, of half its width. GPT-OSS clamps both halves, and keeps
    the clamped gate, its sigmoid and both factors of the last product.
    """
    with torch.device("meta"):
        usual, clamped = MixtralExperts(MixtralConfig()), GptOssExperts(GptOssConfig())
    assert gate_footprint_of(usual) == Footprint(kept=(3, 6), passing=(3, 6))
    assert gate_footprint_of(clamped) == Footprint(kept=(6, 12), passing=(3, 6))


def test_a_norm_of_one_operation_keeps_its_input() -> None:
    assert footprint_of(nn.LayerNorm(64), 64) == tensors(1, 2)


def test_rms_norms_keep_float32_where_they_compute_in_it() -> None:
    """Gemma's scales in float32 too."""
    assert footprint_of(LlamaRMSNorm(64), 64) == RMS_NORM
    assert footprint_of(GemmaRMSNorm(64), 64) == Footprint(kept=(8, 8), passing=(16, 16))


@pytest.mark.parametrize("width", [2, 4096])
def test_what_a_norm_keeps_for_each_vector_is_ignored_at_any_width(width: int) -> None:
    assert footprint_of(LlamaRMSNorm(width), width) == RMS_NORM


def activations(inventory: Inventory) -> dict[str, Footprint]:
    return {one.fqn: one.activation for one in inventory.modules if one.activation != ONE_OPERATION}


def test_the_layer_before_an_activation_function_has_its_footprint(models: Path) -> None:
    layers = [f"transformer.h.{index}.mlp.c_fc" for index in range(2)]
    assert activations(probe(models / "tiny-gpt2")) == dict.fromkeys(layers, tensors(4, 3))


def test_of_a_gate_and_its_value_the_gate_has_it(write_config: ConfigWriter) -> None:
    folder = write_config(architecture="LlamaForCausalLM", model_type="llama", hidden_act="quick_gelu")
    layers = [f"model.layers.{index}.mlp.gate_proj" for index in range(3)]
    assert activations(probe(folder)) == dict.fromkeys(layers, tensors(2, 3))


def test_a_layer_for_both_halves_has_it(write_config: ConfigWriter) -> None:
    folder = write_config(
        architecture="Phi3ForCausalLM", model_type="phi3", hidden_act="quick_gelu", pad_token_id=0
    )
    layers = [f"model.layers.{index}.mlp.gate_up_proj" for index in range(3)]
    assert activations(probe(folder)) == dict.fromkeys(layers, tensors(2, 3))
