from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.inventory.codec import dumps, loads
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.inventory.probe.source_tracker import SourceTracker
from planc.inventory.schema import Inventory, Kind, Routing
from tests.models.tiny import tiny_config
from tests.plans import PLANS
from tests.slow import slow_except

ConfigWriter = Callable[..., Path]


def sources(inventory: Inventory, fqn: str) -> tuple[str, ...]:
    module = inventory.get(fqn)
    assert module is not None
    return module.sources


def below(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


@pytest.fixture(scope="module")
def llama(models: Path) -> Inventory:
    return probe(models / "tiny-llama")


@pytest.fixture(scope="module")
def qwen3(models: Path) -> Inventory:
    return probe(models / "qwen3-8b")


QUICK = ("tiny-llama", "llama-3.1-8b", "qwen3-0.6b", "deepseek-v2-lite", "gemma-3-1b")
MODELS = sorted(path.name for path in (PLANS / "models").iterdir())


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", slow_except(MODELS, *QUICK))
def test_saved_inventory_equals_a_fresh_probe(models: Path, name: str) -> None:
    assert dumps(probe(models / name)) == (models / name / "inventory.json").read_text()


@pytest.mark.slow
def test_sizes_of_the_published_models(models: Path) -> None:
    """DeepSeek-V3's 671 B are without the module that predicts a second token."""
    published = {
        "llama-3.1-8b": 8_030_261_248,
        "qwen3-8b": 8_190_735_360,
        "mixtral-8x7b-v0.1": 46_702_792_704,
        "qwen3-235b-a22b": 235_093_634_560,
        "deepseek-v3": 671_026_404_352,
    }
    assert {name: probe(models / name).num_parameters for name in published} == published


def test_heads_are_those_of_the_attention_call(llama: Inventory) -> None:
    heads = {(a.num_heads, a.num_kv_heads, a.head_dim, a.window) for a in llama.attentions}
    assert heads == {(8, 4, 16, None)}
    assert [a.fqn for a in llama.attentions] == [f"model.layers.{i}.self_attn" for i in range(4)]


def test_kinds(llama: Inventory) -> None:
    kinds = {
        "": Kind.CONTAINER,
        "model.embed_tokens": Kind.EMBEDDING,
        "model.layers": Kind.MODULE_LIST,
        "model.layers.0.self_attn": Kind.CONTAINER,
        "model.layers.0.mlp.up_proj": Kind.LINEAR,
        "model.layers.0.input_layernorm": Kind.NORM,
        "model.rotary_emb": Kind.CONTAINER,
        "lm_head": Kind.LINEAR,
    }
    assert {module.fqn: module.kind for module in llama.modules if module.fqn in kinds} == kinds


def test_layers_are_the_repeated_blocks(llama: Inventory) -> None:
    assert llama.blocks == ("model.layers",)


def test_projections_read_the_norm_before_them(llama: Inventory) -> None:
    layer = "model.layers.1"
    for projection in below(f"{layer}.self_attn", "q_proj", "k_proj", "v_proj"):
        assert sources(llama, projection) == (f"{layer}.input_layernorm",)
    for projection in below(f"{layer}.mlp", "gate_proj", "up_proj"):
        assert sources(llama, projection) == (f"{layer}.post_attention_layernorm",)


def test_flow_passes_through_attention_and_activation(llama: Inventory) -> None:
    attention, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    assert sources(llama, f"{attention}.o_proj") == below(attention, "q_proj", "k_proj", "v_proj")
    assert sources(llama, f"{mlp}.down_proj") == below(mlp, "gate_proj", "up_proj")


def test_residual_stream_names_the_block_before(llama: Inventory) -> None:
    assert sources(llama, "model.layers.0") == ("model.embed_tokens",)
    assert sources(llama, "model.layers.0.input_layernorm") == ("model.embed_tokens",)
    assert sources(llama, "model.layers.1") == ("model.layers.0",)
    assert sources(llama, "model.layers.1.input_layernorm") == ("model.layers.0",)
    assert sources(llama, "model.layers.1.post_attention_layernorm") == (
        "model.layers.0",
        "model.layers.1.self_attn.o_proj",
    )
    assert sources(llama, "model.norm") == ("model.layers.3",)
    assert sources(llama, "lm_head") == ("model.norm",)


def test_token_ids_have_no_source(llama: Inventory) -> None:
    assert sources(llama, "model.embed_tokens") == ()


def test_block_returns_the_residual_sum(llama: Inventory) -> None:
    block = llama.get("model.layers.2")
    assert block is not None
    assert block.returns == (
        "model.layers.1",
        "model.layers.2.self_attn.o_proj",
        "model.layers.2.mlp.down_proj",
    )


def test_leaf_modules_record_no_returns(llama: Inventory) -> None:
    assert all(not module.returns for module in llama.modules if module.kind is not Kind.CONTAINER)


def test_modules_after_which_nothing_is_kept_know_how_far(llama: Inventory) -> None:
    ends = {module.fqn: module.ends for module in llama.modules if module.ends and ".2." in module.fqn}
    layer = "model.layers.2"
    assert ends == {f"{layer}.self_attn.o_proj": 1, f"{layer}.mlp": 1, f"{layer}.mlp.down_proj": 2}


def test_what_is_called_before_another_is_not_the_last(models: Path) -> None:
    """Shared experts run after routed ones."""
    inventory = loads((models / "tiny-deepseek-v3" / "inventory.json").read_bytes())
    ends = {module.fqn.removeprefix("model.layers.1.mlp."): module.ends for module in inventory.modules}
    assert (ends["experts"], ends["shared_experts"], ends["shared_experts.down_proj"]) == (0, 2, 3)


@pytest.mark.parametrize(
    ("name", "architecture", "read"),
    [
        ("llama", "LlamaForCausalLM", []),
        ("qwen2_moe", "Qwen2MoeForCausalLM", below("mlp", "shared_expert.down_proj", "shared_expert_gate")),
        (
            *("deepseek_v32", "DeepseekV32ForCausalLM"),
            below("self_attn.indexer", "wq_b", "k_norm", "weights_proj"),
        ),
    ],
)
def test_outputs_that_code_reads_and_no_module_takes_are_known(
    name: str, architecture: str, read: tuple[str, ...], tmp_path: Path
) -> None:
    """A gate's product keeps what shared experts return; an attention's mask follows from its indexer."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(name, architecture)), encoding="utf-8")
    layer = "model.layers.1."
    modules = [module for module in probe(tmp_path).modules if module.fqn.startswith(layer)]
    assert [module.fqn.removeprefix(layer) for module in modules if module.read_by_code] == [*read]


def test_q_and_k_norms_stand_between_projection_and_attention(qwen3: Inventory) -> None:
    attention = "model.layers.7.self_attn"
    assert sources(qwen3, f"{attention}.q_norm") == (f"{attention}.q_proj",)
    assert sources(qwen3, f"{attention}.k_norm") == (f"{attention}.k_proj",)
    # transformers registers both norms after the projections.
    assert sources(qwen3, f"{attention}.o_proj") == below(attention, "v_proj", "q_norm", "k_norm")


def test_head_dim_need_not_divide_the_hidden_size(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="Qwen3ForCausalLM", model_type="qwen3", head_dim=24)
    assert {attention.head_dim for attention in probe(model_dir).attentions} == {24}


def test_unused_sliding_window_is_no_window(write_config: ConfigWriter) -> None:
    model_dir = write_config(
        architecture="Qwen3ForCausalLM", model_type="qwen3", sliding_window=16, use_sliding_window=False
    )
    assert {attention.window for attention in probe(model_dir).attentions} == {None}


def test_model_plan_has_full_patterns(llama: Inventory) -> None:
    plan = dict(llama.tp_plan)
    assert plan["model.layers.*.self_attn.q_proj"] == "colwise"
    assert plan["model.layers.*.mlp.down_proj"] == "rowwise"
    assert plan["lm_head"] == "colwise_gather_output"


def test_tied_embedding_is_one_parameter(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="LlamaForCausalLM", model_type="llama", tie_word_embeddings=True)
    inventory = probe(model_dir)
    assert inventory.ties == (("model.embed_tokens.weight", "lm_head.weight"),)
    names = [fqn for fqn, _, _ in inventory.parameters()]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_untied_model_has_no_ties(llama: Inventory) -> None:
    assert llama.ties == ()


def test_mistral_window_covers_every_layer(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="MistralForCausalLM", model_type="mistral", sliding_window=16)
    assert [attention.window for attention in probe(model_dir).attentions] == [16, 16, 16]


def test_window_differs_by_layer(write_config: ConfigWriter) -> None:
    model_dir = write_config(
        architecture="Gemma2ForCausalLM",
        model_type="gemma2",
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    assert [attention.window for attention in probe(model_dir).attentions] == [16, None, 16]


def test_window_that_the_model_ignores_is_no_window(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="LlamaForCausalLM", model_type="llama", sliding_window=16)
    assert {attention.window for attention in probe(model_dir).attentions} == {None}


def test_flow_passes_through_experts(write_config: ConfigWriter) -> None:
    model_dir = write_config(
        architecture="MixtralForCausalLM", model_type="mixtral", num_local_experts=4, num_experts_per_tok=2
    )
    inventory = probe(model_dir)
    mlp = "model.layers.0.mlp"
    assert sources(inventory, f"{mlp}.experts") == (f"{mlp}.gate", "model.layers.0.post_attention_layernorm")
    block = inventory.get("model.layers.0")
    assert block is not None
    assert block.returns == ("model.embed_tokens", "model.layers.0.self_attn.o_proj", f"{mlp}.experts")


def test_what_nothing_initialises_is_named_by_its_module(models: Path) -> None:
    inventory = probe(models / "tiny-apertus")
    left = {module.fqn: module.unset for module in inventory.modules if module.unset}
    names = ("alpha_p", "alpha_n", "beta", "eps")
    assert left == {f"model.layers.{layer}.mlp.act_fn": names for layer in range(2)}


def test_probe_leaves_no_attention_behind(models: Path) -> None:
    probe(models / "tiny-llama")
    assert "planc_probe" not in ALL_ATTENTION_FUNCTIONS


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "m.M"}}, "auto_map"),
        ({"architecture": "pipeline"}, "no language model or classifier"),
        ({"architecture": "PreTrainedModel"}, "no language model or classifier"),
        ({"architecture": "pipeline"}, "no language model or classifier"),
        ({"architecture": "LlamaForSequenceClassification"}, "has no `pad_token_id`"),
        ({"architecture": "MistralForCausalLM"}, "no language model or classifier"),
        ({"model_type": "made-up"}, "no language model or classifier"),
        ({"model_type": None}, "no language model or classifier"),
        ({"architectures": "LlamaForCausalLM"}, "no language model or classifier"),
        ({"architectures": []}, "no language model or classifier"),
        ({"architectures": [["LlamaForCausalLM"]]}, "no language model or classifier"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": 33}, "not a multiple"),
    ],
)
def test_unusable_configuration_is_refused(
    write_config: ConfigWriter, keys: dict[str, object], message: str
) -> None:
    defaults = {"architecture": "LlamaForCausalLM", "model_type": "llama"}
    with pytest.raises(InventoryError, match=message):
        probe(write_config(**{**defaults, **keys}))


@pytest.mark.parametrize(
    ("model_type", "help"),
    [
        ("qwenn3", 'did you mean "model_type": "qwen3"?'),
        ("made-up", 'set "model_type" to a language model of transformers'),
        (None, 'set "model_type" to a language model of transformers'),
    ],
)
def test_an_unknown_model_type_is_answered_with_the_nearest(
    write_config: ConfigWriter, model_type: object, help: str
) -> None:
    with pytest.raises(InventoryError) as raised:
        probe(write_config(architecture="Qwen3ForCausalLM", model_type=model_type))
    assert raised.value.help.startswith(help)


ROPE_TYPES = "default, dynamic, linear, llama3, longrope, proportional, yarn"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"rope_parameters": {"rope_type": "rotor", "rope_theta": 1e4}}, "rope_parameters.rope_type"),
        ({"rope_scaling": {"type": "rotor", "factor": 2.0}}, "rope_scaling.type"),
        (
            {
                "architecture": "Gemma3ForCausalLM",
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "full_attention": {"rope_type": "rotor", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            "rope_parameters.full_attention.rope_type",
        ),
    ],
)
def test_rotary_embeddings_that_nobody_knows_are_named_with_those_that_are_known(
    write_config: ConfigWriter, keys: dict[str, object], name: str
) -> None:
    folder = write_config(**{"architecture": "LlamaForCausalLM", "model_type": "llama", **keys})
    with pytest.raises(InventoryError) as caught:
        probe(folder)
    assert caught.value.message == (
        f'{folder / "config.json"}:1: `{name}` is "rotor", and must be one of {ROPE_TYPES}'
    )


def test_an_older_name_that_a_class_knows_is_none_of_them(tmp_path: Path) -> None:
    """Phi-3 wrote "su" for what is called longrope."""
    config = tiny_config("phi3", "Phi3ForCausalLM")
    factors = {name: [1.0] * 8 for name in ("short_factor", "long_factor")}
    config["rope_scaling"] = {"type": "su", **factors, "original_max_position_embeddings": 32}
    config.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert probe(tmp_path).rope_switch == config["original_max_position_embeddings"]


def test_configuration_must_be_an_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(["llama"]))
    with pytest.raises(InventoryError, match="not a JSON object"):
        probe(tmp_path)


def test_attention_in_code_of_the_model_is_named(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="BloomForCausalLM", model_type="bloom", n_head=4, n_layer=1)
    found = probe(model_dir)
    assert found.own_attentions == tuple(f"transformer.h.{index}.self_attention" for index in range(3))
    assert found.attentions == ()


def test_attention_that_is_chosen_at_construction_is_the_models_own(write_config: ConfigWriter) -> None:
    model_dir = write_config(
        architecture="GPTNeoForCausalLM", model_type="gpt_neo", attention_types=[[["global"], 3]]
    )
    assert probe(model_dir).own_attentions == tuple(f"transformer.h.{index}.attn" for index in range(3))


def test_chunks_are_an_extra_of_attention(write_config: ConfigWriter) -> None:
    model_dir = write_config(architecture="Llama4ForCausalLM", model_type="llama4_text", num_local_experts=2)
    assert {one.extras for one in probe(model_dir).attentions} == {("chunked_attention",)}


def test_a_mask_that_the_model_cannot_do_without_is_an_extra(write_config: ConfigWriter) -> None:
    latent = {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    }
    sizes = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "num_attention_heads": 4}
    model_dir = write_config(
        architecture="DeepseekV32ForCausalLM", model_type="deepseek_v32", **latent, **sizes
    )
    extras = {extra for one in probe(model_dir).attentions for extra in one.extras}
    assert "attention_mask" in extras


@pytest.mark.slow
def test_keys_that_are_not_those_of_the_tokens_are_an_extra(tmp_path: Path) -> None:
    config = tiny_config("deepseek_v4", "DeepseekV4ForCausalLM")
    (tmp_path / "config.json").write_text(json.dumps(config))
    extras = dict(zip(config["layer_types"], (one.extras for one in probe(tmp_path).attentions), strict=True))
    assert extras.pop("sliding_attention") == ("s_aux",)
    assert set(extras.values()) == {("s_aux", "compressed_keys")}


def test_model_that_branches_on_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("jetmoe", "JetMoeForCausalLM")))
    with pytest.raises(InventoryError, match="does not run on the meta device"):
        probe(tmp_path)


A, B = frozenset({"a"}), frozenset({"b"})


def tracked(tracker: SourceTracker) -> tuple[Tensor, Tensor]:
    """Two meta tensors [2, 4] that modules "a" and "b" put out, the first a view as a linear layer's is."""
    first = torch.zeros(8, device="meta").view(2, 4)
    second = torch.zeros(2, 4, device="meta")
    tracker.mark(first, sources=A)
    tracker.mark(second, sources=B)
    return first, second


def test_operation_joins_the_sources_of_its_inputs() -> None:
    with torch.no_grad(), SourceTracker() as tracker:
        first, second = tracked(tracker)
        assert tracker.sources(torch.cat([first, second])) == A | B
        assert tracker.sources(torch.where(first > 0, first, 0)) == A


def test_write_through_a_view_reaches_the_whole_tensor() -> None:
    with torch.no_grad(), SourceTracker() as tracker:
        first, second = tracked(tracker)
        first[:, :2] = second[:, 2:]
        assert tracker.sources(first) == A | B
        assert tracker.sources(second) == B


def test_update_in_place_joins_sources() -> None:
    with torch.no_grad(), SourceTracker() as tracker:
        first, second = tracked(tracker)
        first += second
        assert tracker.sources(first.transpose(0, 1)) == A | B


def test_tensor_that_only_lends_its_shape_is_no_source() -> None:
    with torch.no_grad(), SourceTracker() as tracker:
        first, second = tracked(tracker)
        assert tracker.sources(torch.zeros_like(first)) == frozenset()
        assert tracker.sources(first.new_zeros(3)) == frozenset()
        assert tracker.sources(first[:1].expand_as(second)) == A
        assert tracker.sources(first.type_as(second.to(torch.bfloat16))) == A
        assert tracker.sources(first) == A


def test_how_experts_get_their_tokens_is_recorded(models: Path) -> None:
    inventory = probe(models / "tiny-qwen3-moe")
    found = {module.fqn: module.routing for module in inventory.modules if module.routing}
    assert set(found) == {f"model.layers.{layer}.mlp.experts" for layer in range(4)}
    assert set(found.values()) == {Routing(experts_per_token=2, in_float32=False)}
    assert loads(dumps(inventory)) == inventory
