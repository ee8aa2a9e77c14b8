"""Model types that transformers calls causal language models and the table of models leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALL: Mapping[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 66,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 1,
    "is_decoder": True,
}
"""Of an encoder with a head, asked to see no later token."""
HALF: Mapping[str, Any] = {
    "vocab_size": 264,
    "d_model": 64,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "decoder_layerdrop"), 0.0),
    "max_position_embeddings": 66,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
"""Of an encoder-decoder, whose decoder is a language model of its own."""

HALVES = ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus", "plbart")
"""Decoders of encoder-decoders, which number their tokens themselves."""
OFFSET = ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
"""Models whose first token is at the position behind that of padding, which is not counted."""
ORDINARY = ("bert", "bert-generation", "electra", "ernie", "roc_bert", "whisper")
OWN_ATTENTION = ("big_bird", "megatron-bert", "mvp", "prophetnet", "rembert", "roformer", "trocr")
"""Models whose attention is code of their own, which planc runs as it is."""

TRAINED = frozenset((*HALVES, *OFFSET, *ORDINARY, *OWN_ATTENTION))
"""What `test_positions_trained.py` compares with transformers alone."""


def sizes_of(model_type: str) -> Mapping[str, Any]:
    """Fields of a tiny config.json."""
    if (alone := _ALONE.get(model_type)) is not None:
        return alone
    return _OWN_SIZES.get(model_type, {}) | (HALF if model_type in _BY_HALVES else SMALL)


_BY_HALVES = (*HALVES, "bigbird_pegasus", "mvp", "trocr", "whisper")
_OWN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32, "classifier_dropout_prob": 0.0},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
_ALONE: Mapping[str, Mapping[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0),
        }
    },
    "prophetnet": {
        "vocab_size": 264,
        "hidden_size": 64,
        **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
        **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
        "max_position_embeddings": 66,
    },
    "xlm": {"vocab_size": 264, "emb_dim": 64, "n_layers": 2, "n_heads": 4, "dropout": 0.0},
    "xlnet": {"vocab_size": 264, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96, "dropout": 0.0},
}
