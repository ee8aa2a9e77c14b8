"""Small tokenizers of many kinds, as folders that transformers loads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = (
    *("<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
    *("<|user|>", "<|assistant|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
)
_TEXT = (
    "the cat sat on the mat and the dog ran over the hill",
    "hello world, how are you today? fine thanks. yes no maybe",
    "user assistant system tool think answer question USER: ASSISTANT:",
    "café naïve résumé 你好世界 \U0001f600 مرحبا línea\nbreak\n\ntwo\ttab",
    '{"name": "weather", "arguments": {"city": "Paris"}} <think> </think>',
)
_ALPHABET = sorted(
    {char for text in _TEXT for char in text} | set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789")
)


def _byte_level(*, adds_space: bool = False, uses_pattern: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space, use_regex=uses_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def _normalized(normalizer: Any) -> Tokenizer:
    tokenizer = _byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


def _split() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex(r" ?\w+|\s*[\r\n]+|\s+|[^\w\s]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def _fallback_to_bytes(tokenizer: Tokenizer) -> Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    return _trained(tokenizer, trainers.BpeTrainer, more=byte_tokens)


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    return _fallback_to_bytes(tokenizer)


def _llama_2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Metaspace()
    return _fallback_to_bytes(tokenizer)


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return _trained(tokenizer, trainers.UnigramTrainer, unk_token="<unk>", initial_alphabet=_ALPHABET)


def _words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _trained(tokenizer, trainers.WordLevelTrainer)


def _word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _trained(tokenizer, trainers.WordPieceTrainer, initial_alphabet=_ALPHABET)


def _characters() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    return _trained(tokenizer, trainers.BpeTrainer, initial_alphabet=_ALPHABET, vocab_size=1)


def _with_processor() -> Tokenizer:
    tokenizer = _byte_level(uses_pattern=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(one, tokenizer.token_to_id(one)) for one in ("<s>", "</s>")]
    )
    return tokenizer


def _trained(
    tokenizer: Tokenizer, trainer: Any, *, more: list[str] | None = None, **settings: Any
) -> Tokenizer:
    settings = {"vocab_size": 700, "show_progress": False, **settings}
    tokenizer.train_from_iterator(_TEXT * 3, trainer(special_tokens=[*SPECIAL, *(more or [])], **settings))
    return tokenizer


def _stripping() -> Tokenizer:
    tokenizer = _byte_level()
    stripped = [
        AddedToken(token, lstrip=True, rstrip=True, special=True) for token in ("<|end|>", "<|user|>")
    ]
    tokenizer.add_special_tokens(stripped)
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "byte-level": _byte_level,
    "byte-level with a space before": lambda: _byte_level(adds_space=True),
    "byte-level, NFC": lambda: _normalized(normalizers.NFC()),
    "byte-level, NFKC and lower case": lambda: _normalized(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "byte-level that strips": lambda: _normalized(normalizers.Strip()),
    "byte-level by words": _split,
    "metaspace": _metaspace,
    "Llama 2": _llama_2,
    "unigram": _unigram,
    "words": _words,
    "word pieces": _word_pieces,
    "characters": _characters,
    "byte-level that adds tokens": _with_processor,
    "tokens that take spaces": _stripping,
}


def save(kind: str, folder: Path) -> Path:
    """The folder of a tokenizer without a template."""
    folder.mkdir(parents=True)
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
