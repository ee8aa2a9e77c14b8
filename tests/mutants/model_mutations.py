"""Mutations of the model: its sizes, ties, biases, windows, and its whole architecture."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.mutants.draft import Draft
from tests.mutants.mutant import Edited
from tests.mutants.shrink import Config

_NO_DROPOUT: Config = {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
_DEEPSEEK: Config = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 8,
    "moe_intermediate_size": 32,
}
ARCHITECTURES: tuple[tuple[str, str, Config], ...] = (
    ("mistral", "MistralForCausalLM", {"sliding_window": None}),
    ("mistral", "MistralForCausalLM", {"sliding_window": 8}),
    ("qwen2", "Qwen2ForCausalLM", {}),
    ("qwen3", "Qwen3ForCausalLM", {"head_dim": 16}),
    ("llama", "LlamaForCausalLM", {}),
    ("olmo", "OlmoForCausalLM", {}),
    ("olmo2", "Olmo2ForCausalLM", {}),
    ("olmo3", "Olmo3ForCausalLM", {"sliding_window": 8}),
    ("gemma", "GemmaForCausalLM", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    ("gemma2", "Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": 8}),
    ("gemma3_text", "Gemma3ForCausalLM", {"head_dim": 16, "sliding_window": 8}),
    ("granite", "GraniteForCausalLM", {"residual_multiplier": 0.5, "logits_scaling": 4.0}),
    ("granite", "GraniteForCausalLM", {"embedding_multiplier": 12.0, "attention_multiplier": 0.1}),
    ("phi3", "Phi3ForCausalLM", {"pad_token_id": 0}),
    ("smollm3", "SmolLM3ForCausalLM", {"pad_token_id": 0, "no_rope_layers": [1, 0]}),
    ("cohere", "CohereForCausalLM", {}),
    ("cohere2", "Cohere2ForCausalLM", {"sliding_window": 8}),
    ("starcoder2", "Starcoder2ForCausalLM", {"use_bias": True, **_NO_DROPOUT}),
    ("stablelm", "StableLmForCausalLM", {"use_qkv_bias": True}),
    ("nemotron", "NemotronForCausalLM", {}),
    ("glm", "GlmForCausalLM", {"head_dim": 16, "pad_token_id": 0}),
    ("glm4", "Glm4ForCausalLM", {"head_dim": 16, "pad_token_id": 0}),
    ("seed_oss", "SeedOssForCausalLM", {"head_dim": 16, "attention_out_bias": False}),
    ("exaone4", "Exaone4ForCausalLM", {"sliding_window": 8}),
    ("ernie4_5", "Ernie4_5ForCausalLM", {"use_bias": False}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("gpt2", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 64}),
    ("gpt_neox", "GPTNeoXForCausalLM", {}),
    ("phi", "PhiForCausalLM", {}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {"head_dim": 16}),
    ("arcee", "ArceeForCausalLM", {}),
    ("helium", "HeliumForCausalLM", {"head_dim": 16}),
    ("apertus", "ApertusForCausalLM", {}),
    ("gpt_oss", "GptOssForCausalLM", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8}),
    ("deepseek_v3", "DeepseekV3ForCausalLM", _DEEPSEEK),
)
"""(model_type, architecture, what differs from the base's config)."""

_FAMILY = ("model_type", "architectures", "use_sliding_window", "max_window_layers", "layer_types")
_SHARED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "eos_token_id",
    "attention_bias",
)
"""What every architecture here takes from the base's config."""
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
"""How the configs of GPT-2's family call them."""


def heads(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other numbers of heads."""
    num_heads = random.choice((2, 3, 4, 6, 8, 12, 16))
    kv_heads = random.choice([count for count in (1, 2, 3, 4, 6, 8) if num_heads % count == 0])
    changes = {"num_attention_heads": num_heads, "num_key_value_heads": kv_heads, "head_dim": 16}
    return _changed(draft, config, changes)


def widths(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Other widths, even and odd."""
    name, values = random.choice(
        (
            ("intermediate_size", (90, 95, 96, 97, 98, 100, 130)),
            ("hidden_size", (48, 62, 63, 66, 72, 80)),
            ("vocab_size", (257, 258, 259, 261, 264, 300, 256, 200)),
            ("max_position_embeddings", (16, 31, 32, 33, 128)),
        )
    )
    changes: dict[str, Any] = {name: random.choice(values)}
    if name == "hidden_size":
        changes["head_dim"] = 8
    return _changed(draft, config, changes)


def ties(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Tied embeddings; at times with their units or rules made to suit."""
    edited = _changed(draft, config, {"tie_word_embeddings": not config.get("tie_word_embeddings")})
    if edited is None or random.random() < 0.4:
        return edited
    if random.random() < 0.6:
        suited = edited.draft.edit(
            "fsdp", lambda block: block.with_rule(1) if len(block.rules) > 1 else block.with_rule(0)
        )
        return Edited(suited, edited.config, f"{edited.note}, a unit less")
    vocabulary = random.choice((257, 259, 260))
    more = {**edited.config, "vocab_size": vocabulary}
    return Edited(edited.draft, more, f"{edited.note}, vocab_size = {vocabulary}")


def biases(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Biases in attention, in the MLP, or in both."""
    names = random.choice((("attention_bias",), ("mlp_bias",), ("attention_bias", "mlp_bias")))
    return _changed(draft, config, dict.fromkeys(names, True))


def options(draft: Draft, config: Config, random: Random) -> Edited | None:
    """What a config says beyond sizes: dropout, activation, rotary embedding, initialisation."""
    scaling = ("linear", "dynamic", "yarn", "llama3", "default")
    ropes = {
        "rope_type": random.choice(scaling),
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": random.choice((16, 32, 64)),
    }
    changes = random.choice(
        (
            {random.choice(("attention_dropout", "residual_dropout")): 0.1},
            {"hidden_act": random.choice(("gelu", "relu", "silu", "relu2"))},
            {"rope_scaling": ropes},
            {"rope_scaling": ropes},
            {"initializer_range": random.choice((0.002, 0.2))},
            {"rms_norm_eps": random.choice((1e-8, 1e-2))},
            {"num_hidden_layers": random.choice((1, 3, 4))},
            {"torch_dtype": random.choice(("float16", "bfloat16", "float32"))},
            {"pretraining_tp": 2},
            {"use_cache": False},
        )
    )
    return _changed(draft, config, changes)


def windows(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Sliding windows in all layers or in one, narrow and wider than the sequence."""
    window = random.choice((4, 8, 31, 32, 33, 100))
    kinds = random.choice(
        (
            ["sliding_attention", "full_attention"],
            ["sliding_attention"] * 2,
            ["full_attention", "sliding_attention"],
        )
    )
    family = random.choice(("mistral", "qwen3"))
    config = {**config, **_shared(config)}
    if family == "mistral":
        changes: dict[str, Any] = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        return _changed(draft, config, {**changes, "sliding_window": window})
    changes = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}
    return _changed(
        draft, config, {**changes, "sliding_window": window, "layer_types": kinds, "head_dim": 16}
    )


def architecture(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another model under the same plan, or under its own tensor-parallel plan."""
    model_type, name, changes = random.choice(ARCHITECTURES)
    changed = of_architecture(config, model_type, name, changes)
    changed["tie_word_embeddings"] = random.random() < 0.3
    note = f"{model_type} with {changes}" if changes else model_type
    if changed["tie_word_embeddings"]:
        note += ", tied"
        draft = draft.edit("fsdp", lambda block: block.with_rule(1) if len(block.rules) > 1 else block)
    if random.random() < 0.6:
        draft = draft.edit("tensor_parallel", lambda block: replace_rules(block))
        note += ", auto"
    return Edited(draft, changed, note)


def of_architecture(config: Config, model_type: str, name: str, changes: Config) -> dict[str, Any]:
    """The config of another model of the same sizes."""
    return {**_shared(config), "model_type": model_type, "architectures": [name], **changes}


def _shared(config: Config) -> dict[str, Any]:
    """A config's sizes by their usual names: without them another model would have its own, full ones."""
    named = {**{name: config[old] for name, old in _GPT2_NAMES.items() if old in config}, **config}
    return {key: named[key] for key in _SHARED if key in named}


def replace_rules(block: Any) -> Any:
    """A tensor-parallel block that leaves everything to the model."""
    return type(block)(block.kind, block.on, block.settings, ("auto",))


def _changed(draft: Draft, config: Config, changes: Config) -> Edited | None:
    if all(config.get(name) == value for name, value in changes.items()):
        return None
    note = ", ".join(f"{name} = {value}" for name, value in changes.items() if name not in _FAMILY[:1])
    return Edited(draft, {**config, **changes}, note)
