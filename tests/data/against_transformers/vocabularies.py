"""Small vocabularies in every form that transformers reads, made here."""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Iterator, Mapping

import sentencepiece
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = (
    *("<s>", "<pad>", "</s>", "<unk>", "<mask>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    *("<|endoftext|>", "<|startoftext|>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "__start__"),
)
TEXT = (
    "The quick brown fox jumps over the lazy dog.\ndef encode(self, text):\n    return [x for x in text]\n"
    "Là-bas, à gauche: où est le café ? Größe 1234567890. Ещё раз. 你好世界。 ☕🙂 a\u200bb\tc\n"
)
_LINES = [line for line in TEXT.splitlines() if line] * 8
Files = Mapping[str, bytes]


def _specials() -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in SPECIAL]


@functools.cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=_specials(), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    # As Llama 3 and others: a token at the start of each text.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@functools.cache
def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=_specials(), show_progress=False)
    tokenizer.train_from_iterator(_LINES, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    return tokenizer


@functools.cache
def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=_specials(), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


@functools.cache
def sentence_pieces(kind: str) -> bytes:
    """A SentencePiece model, of `unigram` or of `bpe`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_LINES),
        model_writer=model,
        model_type=kind,
        vocab_size=360,
        byte_fallback=True,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        user_defined_symbols=["<mask>"],
        minloglevel=2,
    )
    return model.getvalue()


def _ranks() -> bytes:
    """A tiktoken file: every byte, and the pairs of some letters."""
    pieces = [bytes([value]) for value in range(256)]
    pieces += [first + second for first in (b" ", b"e", b"t") for second in (b"a", b"e", b"t", b"h")]
    return b"".join(b"%s %d\n" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


@functools.cache
def _files() -> dict[str, bytes]:
    """The content of each file that is not of SentencePiece, by name."""
    fast = json.loads(byte_level().to_str())["model"]
    vocabulary, merges = fast["vocab"], [" ".join(pair) for pair in fast["merges"]]
    lists = byte_level().get_vocab()
    pieces = sorted(word_pieces().get_vocab(), key=word_pieces().get_vocab().__getitem__)
    words = "".join(f"{piece}\n" for piece in pieces).encode()
    letters = {piece: number for number, piece in enumerate([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz'|"])}
    return {
        "vocab.json": _json({**vocabulary, **lists}),
        "merges.txt": ("#version: 0.2\n" + "\n".join(merges) + "\n").encode(),
        "vocab.txt": words,
        "prophetnet.tokenizer": words,
        "bpe.codes": "".join(f"{merge} 1\n" for merge in merges).encode(),
        "dict.txt": b"".join(b"\xe2\x96\x81%c 1\n" % letter for letter in b"abcdefgh"),
        "vocab-src.json": _json(letters),
        "vocab-tgt.json": _json(letters),
        "target_vocab.json": _json(letters),
        "emoji.json": _json({"emoji": {}, "emoji_inv": {}}),
        "entity_vocab.json": _json({"[MASK]": 0, "[PAD]": 1, "[UNK]": 2, "[MASK2]": 3}),
        "normalizer.json": _json({"colour": "color"}),
        "word_shape.json": _json({piece: number for number, piece in enumerate(pieces)}),
        "word_pronunciation.json": _json({piece: number for number, piece in enumerate(pieces)}),
        "byte_maps.json": _json({"decompose_map": {}, "merge_map": {}}),
        "tiktoken.model": _ranks(),
    }


def variants(names: frozenset[str]) -> Iterator[Files]:
    """The files of a class of tokenizers, which reads files of `names`, in each form that might suit it."""
    slow = names - {"tokenizer.json", "tokenizer_config.json"}
    others = {name: _files()[name] for name in slow if name in _files()}
    models = [name for name in slow if name not in others]
    if slow:
        for kind in ("unigram", "bpe") if models else ("",):
            yield {**others, **{name: sentence_pieces(kind) for name in models}}
    for whole in (byte_level, word_pieces, unigram) if "tokenizer.json" in names or not models else ():
        yield {"tokenizer.json": whole().to_str().encode()}
    if not slow:
        yield {}
