"""What the own code of layers and of their parts keeps for backward, against sums by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.inventory.codec import dumps, loads
from planc.inventory.footprint import NOTHING, RMS_NORM, OwnCode
from planc.inventory.probe.probe import probe
from tests.inventory.conftest import ConfigWriter

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 4, 2, 8


def codes(folder: Path, *, kind: str = "own_code") -> set[OwnCode]:
    """Of attentions."""
    inventory = probe(folder)
    names = {*inventory.own_attentions, *(one.fqn for one in inventory.attentions)}
    return {getattr(module, kind) for module in inventory.modules if module.fqn in names}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("architecture", "model_type", "keys"),
    [
        ("LlamaForCausalLM", "llama", {}),
        ("Qwen3ForCausalLM", "qwen3", {}),
        # Queries, keys and values are parts of one tensor, and nothing else keeps it.
        ("GPT2LMHeadModel", "gpt2", {"n_embd": HIDDEN, "n_head": HEADS, "n_layer": 3}),
    ],
)
def test_code_between_projections_and_the_kernel_keeps_nothing(
    write_config: ConfigWriter, architecture: str, model_type: str, keys: Mapping[str, object]
) -> None:
    assert codes(write_config(architecture=architecture, model_type=model_type, **keys)) == {OwnCode()}


@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS])
def test_values_that_are_cut_from_a_projection_keep_all_of_it(
    write_config: ConfigWriter, kv_heads: int
) -> None:
    """Rotated queries and keys are new tensors, and what they were made from stays, too. They are laid out by
    heads, and so is the kernel's output: the next layer reads a copy."""
    folder = write_config(
        architecture="Phi3ForCausalLM", model_type="phi3", pad_token_id=None, num_key_value_heads=kv_heads
    )
    extra = (HEADS + kv_heads) * HEAD_DIM + HEADS * HEAD_DIM
    assert codes(folder) == {OwnCode(by_token=(2 * extra, 4 * extra))}


def test_code_of_its_own_keeps_scores(write_config: ConfigWriter) -> None:
    """BLOOM's softmax computes in float32, and its product with the values in the model's dtype."""
    folder = write_config(architecture="BloomForCausalLM", model_type="bloom", n_head=HEADS, n_layer=1)
    fused = 3 * HIDDEN
    assert codes(folder) == {OwnCode(by_token=(2 * fused, 4 * fused), by_pair=(6 * HEADS, 4 * HEADS))}


def test_a_models_own_attention_function_keeps_scores(write_config: ConfigWriter) -> None:
    """Llama's computes its softmax in float32, and repeats keys and values; GPT-2's does neither."""
    grouped = write_config(architecture="LlamaForCausalLM", model_type="llama")
    width = 3 * HEADS * HEAD_DIM
    assert codes(grouped, kind="eager_code") == {OwnCode((2 * width, 4 * width), (6 * HEADS, 4 * HEADS))}
    fused = write_config(architecture="GPT2LMHeadModel", model_type="gpt2", n_embd=HIDDEN, n_head=HEADS)
    assert codes(fused, kind="eager_code") == {OwnCode((2 * width, 4 * width), (2 * HEADS, 4 * HEADS))}


def test_layers_that_the_probe_does_not_run_have_what_their_equals_have(write_config: ConfigWriter) -> None:
    folder = write_config(
        architecture="BloomForCausalLM", model_type="bloom", n_head=HEADS, num_hidden_layers=8
    )
    inventory = probe(folder)
    assert len(inventory.own_attentions) == 8
    assert len(codes(folder)) == 1


@pytest.mark.parametrize(
    ("architecture", "model_type", "keys"),
    [("LlamaForCausalLM", "llama", {}), ("Phi3ForCausalLM", "phi3", {"pad_token_id": None})],
)
def test_a_gate_keeps_both_factors_and_its_activation(
    write_config: ConfigWriter, architecture: str, model_type: str, keys: Mapping[str, object]
) -> None:
    """Whether two projections compute them or one."""
    inventory = probe(write_config(architecture=architecture, model_type=model_type, **keys))
    mlp, layer = inventory.get("model.layers.1.mlp"), inventory.get("model.layers.1")
    assert mlp is not None and layer is not None
    assert mlp.own_code == mlp.eager_code == OwnCode((2 * 3 * INNER, 4 * 3 * INNER))
    assert layer.own_code == OwnCode()


@pytest.mark.slow
def test_a_scan_keeps_what_the_rehearsal_keeps(write_config: ConfigWriter) -> None:
    """Nothing but the code's own operations tells what a state space model keeps."""
    inventory = probe(write_config(architecture="MambaForCausalLM", model_type="mamba"))
    mixer = inventory.get("backbone.layers.1.mixer")
    assert mixer is not None and mixer.own_code is not None
    assert mixer.own_code.by_token[0] > 100 * HIDDEN
    assert mixer.own_code.by_pair == (0, 0)


def test_code_around_layers_is_measured_without_them(write_config: ConfigWriter) -> None:
    """NanoChat's stem has two norms without weights, each of which keeps its input and a root in float32.
    In Llama's only the last norm keeps anything, which is counted apart."""
    nanochat = probe(write_config(architecture="NanoChatForCausalLM", model_type="nanochat"))
    stem = nanochat.get("model")
    assert stem is not None
    assert stem.own_code == stem.eager_code == OwnCode((2 * (4 * HIDDEN + 4), 2 * (4 * HIDDEN + 4)))
    stem = probe(write_config(architecture="LlamaForCausalLM", model_type="llama")).get("model")
    assert stem is not None
    assert stem.own_code == OwnCode()


def test_experts_are_not_measured(write_config: ConfigWriter) -> None:
    """The tokens of each depend on values, which nothing has here; another rule counts them."""
    folder = write_config(
        architecture="MixtralForCausalLM", model_type="mixtral", num_local_experts=4, num_experts_per_tok=2
    )
    inventory = probe(folder)
    assert {one.own_code for one in inventory.modules if "mlp" in one.fqn} == {None}


def test_layers_with_experts_are_measured_without_them(write_config: ConfigWriter) -> None:
    """Kernels of experts take one dtype, and which rows they get depends on values."""
    folder = write_config(
        architecture="MixtralForCausalLM", model_type="mixtral", num_local_experts=4, num_experts_per_tok=2
    )
    layers = [one for one in probe(folder).modules if one.fqn.rpartition(".")[0] == "model.layers"]
    assert [one.own_code for one in layers] == [OwnCode()] * len(layers)


def test_gated_norms_are_counted_with_the_code_around_them(write_config: ConfigWriter) -> None:
    """Mamba-2's reads the scan's output and a gate, and keeps both in float32 with what it makes of them."""
    inventory = probe(
        write_config(architecture="Mamba2ForCausalLM", model_type="mamba2", num_heads=8, head_dim=8)
    )
    mixer, gated, usual = map(
        inventory.get, ("backbone.layers.0.mixer", "backbone.layers.0.mixer.norm", "backbone.layers.0.norm")
    )
    assert mixer is not None and gated is not None and usual is not None
    assert gated.footprint == NOTHING
    assert usual.footprint == RMS_NORM
    assert mixer.own_code is not None


def test_norms_without_weights_are_counted_with_the_code_around_them(write_config: ConfigWriter) -> None:
    """DiffLlama's attention calls its kernel twice with the same queries and keys. It keeps the values of the
    second call, both outputs and a copy of them, and the norm's input in float32 with a root of each pair."""
    folder = write_config(architecture="DiffLlamaForCausalLM", model_type="diffllama")
    width = HEADS * HEAD_DIM
    narrow = 2 * (KV_HEADS * HEAD_DIM + 2 * width + 2 * width) + 4 * (width + HEADS // 2)
    assert {one.by_token[0] for one in codes(folder)} == {narrow}


def test_it_is_kept_in_files(write_config: ConfigWriter) -> None:
    inventory = probe(write_config(architecture="BloomForCausalLM", model_type="bloom", n_head=HEADS))
    assert loads(dumps(inventory)) == inventory
