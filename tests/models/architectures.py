"""The architectures of the table: every causal language model that transformers has, but for a few kinds."""

from __future__ import annotations

from collections.abc import Mapping

from tests.positions.sizes import TRAINED

_MASKED = "an encoder with a head; its attention sees later tokens unless asked otherwise"
_HALF = "the decoder of an encoder-decoder"
_MIXED = "a model of more than text; its language model is in the table, or under a name of its own"
_ALIAS = "another name of a model in the table"

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "xlm",
            "xlnet",
            "xmod",
        ),
        _MASKED,
    ),
    "bigbird_pegasus": _HALF,
    **dict.fromkeys(
        (
            *("dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant"),
            *("gemma4_unified", "gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama", "moshi"),
            *("moss_transcribe_diarize", "musicgen", "musicgen_melody", "qwen3_5", "qwen3_5_moe"),
            *("qwen4_exp", "phi4_multimodal"),
        ),
        _MIXED,
    ),
    "gpt-sw3": _ALIAS,
}
"""Model types of transformers' list that the table leaves out, with the reason."""


MIXTURES = frozenset(
    (
        *("afmoe", "aria_text", "axk1", "axk2", "bailing_hybrid", "beam", "cohere2_moe", "dbrx"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "dots3_note_text"),
        *("ernie4_5_moe", "exaone_moe", "flex_olmo", "flint", "glm4_moe", "glm4_moe_lite"),
        *("glm_moe_dsa", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid"),
        *("granitemoeshared", "hunyuan_v1_moe", "hy_v3", "hy_v4", "inkling2_text", "inkling_text"),
        *("jamba", "jetmoe", "kimi_linear", "kolibri1", "laguna", "lfm2_moe", "llama4_text"),
        *("longcat_flash", "mellum", "mimo_v2_flash", "minimax", "minimax_m2", "minimax_m3_vl_text"),
        *("mixtral", "nemotron_h", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe"),
        *("qwen3_next", "qwen4_exp_text", "solar_open", "zaya"),
    )
)
"""Model types of the table whose layers choose experts for each token."""


def known_types() -> Mapping[str, str]:
    """The class of every model type that transformers calls a causal language model."""
    # transformers takes seconds to import, and a reader of the page needs none of it.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {model_type: name if isinstance(name, str) else name[0] for model_type, name in names}


def in_the_table() -> Mapping[str, str]:
    """The class of every model type of the table."""
    return {model_type: name for model_type, name in known_types().items() if model_type not in LEFT_OUT}


def architectures() -> Mapping[str, str]:
    """The class of every model type of the table that is a decoder unasked: those that people train."""
    return {model_type: name for model_type, name in in_the_table().items() if model_type not in TRAINED}
