"""Every class of tokenizers that transformers builds from a small vocabulary, and every side file."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from planc.runtime.data.encoding.client import Fault
from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizers import FileTokenizer, read_tokenizer
from tests.data.against_transformers.comparison import Comparison
from tests.data.against_transformers.vocabularies import (
    SPECIAL,
    TEXT,
    Files,
    byte_level,
    sentence_pieces,
    unigram,
    variants,
)
from tests.data.tokenizing import document

IDS, BEGINS, ENDS, DECODED, SPECIALS, LARGEST = (
    "ids",
    "ids with begin",
    "whether a text fails",
    "decoding",
    "special ids",
    "largest id",
)
REFUSED = "whether a tokenizer is refused"
INCONSISTENT = "texts to which transformers itself gives other ids with special tokens (not compared)"


@dataclass(frozen=True)
class Case:
    """The files of a tokenizer's directory."""

    name: str
    files: Files

    def settings(self, **changes: Any) -> Case:
        """The same with other entries in its tokenizer_config.json."""
        config = {**json.loads(self.files.get("tokenizer_config.json", b"{}")), **changes}
        return replace(self, files={**self.files, "tokenizer_config.json": json.dumps(config).encode()})

    def write(self, folder: Path) -> None:
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def classes() -> Iterator[type[PreTrainedTokenizerBase]]:
    """Every class of tokenizers that a model's module defines."""
    root = Path(transformers.__file__).parent / "models"
    for path in sorted(root.glob("*/tokenization_*.py")):
        with contextlib.suppress(ImportError, NameError):
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            for _, found in sorted(inspect.getmembers(module, inspect.isclass)):
                if found.__module__ == module.__name__ and issubclass(found, PreTrainedTokenizerBase):
                    yield found


def class_cases() -> Iterator[Case]:
    """The first vocabulary that each class takes, and what `save_pretrained` makes of it."""
    for kind in classes():
        names = frozenset(name for name in kind.vocab_files_names.values())
        for number, files in enumerate(variants(names)):
            case = Case(f"{kind.__name__} {'+'.join(sorted(files)) or 'no files'} {number}", files)
            yield case.settings(tokenizer_class=kind.__name__)


def _token(content: str, **flags: bool) -> dict[str, Any]:
    all_flags = dict.fromkeys(("special", "lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": content, **all_flags, **flags}


_ADDED = {
    "900": _token("<think>"),
    "901": _token("</think>", special=True, lstrip=True),
    "902": _token(" wide ", rstrip=True, normalized=True),
}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "added_tokens_decoder": {"added_tokens_decoder": _ADDED},
    "added_tokens_decoder of a known token": {
        "added_tokens_decoder": {"11": _token("<|startoftext|>", lstrip=True)}
    },
    "extra_special_tokens": {"extra_special_tokens": ["<think>", "</think>", "<s>"]},
    "named extra_special_tokens": {"extra_special_tokens": {"image_token": "<think>"}},
    "additional_special_tokens": {"additional_special_tokens": ["<think>", "<|im_end|>"]},
    "a new pad_token": {"pad_token": "</think>"},
    "a new eos_token": {"eos_token": {"__type": "AddedToken", **_token("<think>", special=True)}},
    "a named token": {"audio_token": "<think>"},
    "split_special_tokens": {"split_special_tokens": True, "eos_token": "</s>"},
    "add_prefix_space": {"add_prefix_space": True},
    "add_bos_token, add_eos_token": {
        "add_bos_token": True,
        "add_eos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
    },
    "truncation": {"model_max_length": 4, "truncation_side": "left", "max_length": 2, "truncation": True},
    "clean_up_tokenization_spaces": {"clean_up_tokenization_spaces": True},
}
_SIDE_FILES: Mapping[str, Mapping[str, Any]] = {
    "added_tokens.json": {"added_tokens.json": {"<think>": 900, "</think>": 901}},
    "special_tokens_map.json": {
        "special_tokens_map.json": {
            "pad_token": "<think>",
            "eos_token": _token("</s>"),
            "extra_special_tokens": ["</think>"],
        }
    },
    "added_tokens.json, special_tokens_map.json": {
        "added_tokens.json": {"<think>": 900, "</think>": 901},
        "special_tokens_map.json": {"pad_token": "<think>"},
    },
    **{
        f"config.json of {kind}": {"config.json": {"model_type": kind}}
        for kind in ("llama", "gpt2", "qwen2", "gemma2", "mistral", "phi3", "gpt_neox")
    },
    "config.json with a class": {"config.json": {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"}},
}


def side_file_cases() -> Iterator[Case]:
    """Every side file and setting, next to vocabularies of each form."""

    def whole(text: str) -> Files:
        return {"tokenizer.json": text.encode()}

    padded = json.loads(byte_level().to_str())
    padded["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padded["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    sound = whole(byte_level().to_str())
    bases = (
        Case("tokenizer.json", sound),
        Case("tokenizer.json of a Unigram", whole(unigram().to_str())),
        Case("GPT2Tokenizer", sound).settings(tokenizer_class="GPT2TokenizerFast"),
        Case("PreTrainedTokenizerFast", sound).settings(tokenizer_class="PreTrainedTokenizerFast"),
        Case("LlamaTokenizer", {"tokenizer.model": sentence_pieces("bpe")}).settings(
            tokenizer_class="LlamaTokenizer"
        ),
        Case("T5Tokenizer", {"spiece.model": sentence_pieces("unigram")}).settings(
            tokenizer_class="T5Tokenizer"
        ),
        Case("tokenizer.json with padding", whole(json.dumps(padded))),
    )
    yield from bases
    yield Case("tiktoken", dict(next(iter(variants(frozenset({"tiktoken.model"})))))).settings(
        tokenizer_class="PreTrainedTokenizerFast",
        added_tokens_decoder={"270": _token("<|eot|>", special=True)},
    )
    for base in bases:
        for name, settings in _SETTINGS.items():
            yield replace(base, name=f"{base.name}, {name}").settings(**settings)
        for name, files in _SIDE_FILES.items():
            added = {path: json.dumps(content).encode() for path, content in files.items()}
            yield Case(f"{base.name}, {name}", {**base.files, **added})


def texts(number: int, *, tokens: Sequence[str], seed: int) -> list[str]:
    """Random texts: words, spaces, scripts, and the tokenizer's own tokens between and inside of them."""
    chance = random.Random(seed)
    words = TEXT.split()
    signs = "  \t\n\u00a0\u200b\u3000'\"-_.,!?0123456789aeiouéßЖ你好☕🙂\u0301\u200d"
    own = [*tokens, *SPECIAL, "<think>", "</think>", " wide ", "<|eot|>"]

    def part() -> str:
        match chance.randrange(6):
            case 0 | 1:
                return chance.choice(words)
            case 2:
                return "".join(chance.choices(signs, k=chance.randrange(1, 6)))
            case 3:
                return chance.choice(own)
            case 4:
                return " " * chance.randrange(1, 4)
            case _:
                return chr(chance.choice((chance.randrange(32, 0x3000), chance.randrange(0x1F300, 0x1FAFF))))

    return ["", " ", *("".join(part() for _ in range(chance.randrange(1, 24))) for _ in range(number - 2))]


def compare_case(case: Case, folder: Path, *, num_texts: int, compared: Comparison) -> bool:
    """Compare one directory; whether transformers builds a tokenizer for text from it."""
    case.write(folder)
    try:
        reference = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        reference("a", add_special_tokens=False)
    except Exception:
        reference = None
    end = "</s>"
    if reference is not None:
        end = reference.convert_ids_to_tokens(min(reference.get_vocab().values()))
    tokenizer = _loaded(folder, end=end, begin="auto") or _loaded(folder, end=end, begin=None)
    compared.add(REFUSED, case.name, planc=tokenizer is None, transformers=reference is None)
    if tokenizer is None or reference is None:
        return False
    with contextlib.closing(tokenizer):
        marked = [token.content for token in reference.added_tokens_decoder.values() if token.special]
        specials = {*reference.all_special_ids, *reference.convert_tokens_to_ids(marked)}
        compared.add(SPECIALS, case.name, planc={*tokenizer.special_ids}, transformers=specials)
        compared.add(LARGEST, case.name, planc=tokenizer.vocab_size, transformers=_largest(reference) + 1)
        _compare_texts(case, tokenizer, reference, num_texts=num_texts, compared=compared)
    return True


def _loaded(folder: Path, *, end: str, begin: str | None) -> FileTokenizer | None:
    """The tokenizer as planc loads it; None if it refuses it."""
    try:
        files = read_tokenizer(folder.name, base=folder.parent, end_of_document=end, begin_of_document=begin)
        tokenizer = files.load(num_processes=1)
    except DataError:
        return None
    assert isinstance(tokenizer, FileTokenizer)
    return tokenizer


def _largest(reference: Any) -> int:
    return max({**reference.get_vocab(), **reference.added_tokens_encoder}.values())


def _compare_texts(
    case: Case, tokenizer: FileTokenizer, reference: Any, *, num_texts: int, compared: Comparison
) -> None:
    tokens = [*reference.all_special_tokens, *reference.added_tokens_encoder]
    given = texts(num_texts, tokens=tokens, seed=len(case.name))
    expected = [_ids(reference, text) for text in given]
    usable = [(text, ids) for text, ids in zip(given, expected, strict=True) if ids is not None]
    found = tokenizer.encode([document(text) for text, _ in usable])
    all_ids = []
    num_begin = _num_before(reference)
    for (text, ids), one in zip(usable, found, strict=True):
        where = f"{case.name}: {text!r}"
        planc = one.reason if isinstance(one, Fault) else one.ids.tolist()
        begins = planc[: len(planc) - len(ids)]
        compared.add(IDS, where, planc=planc[len(begins) :], transformers=ids)
        whole = list(reference(text)["input_ids"])
        # CodeLlama's gives some texts other ids between its own special tokens.
        if whole[num_begin : num_begin + len(ids)] == ids:
            compared.add(BEGINS, where, planc=planc, transformers=whole[: len(planc)])
        else:
            compared.add(INCONSISTENT, where, planc=None, transformers=None)
        all_ids.append(ids)
    for text in [text for text, ids in zip(given, expected, strict=True) if ids is None][:2]:
        [one] = tokenizer.encode([document(text)])
        compared.add(ENDS, f"{case.name}: {text!r}", planc=isinstance(one, Fault), transformers=True)
    for ids, text in zip(all_ids, tokenizer.decode(all_ids), strict=True):
        compared.add(DECODED, f"{case.name}: {ids}", planc=text, transformers=reference.decode(ids))


def _num_before(reference: Any) -> int:
    """How many ids transformers puts before a text."""
    whole = list(reference("a")["input_ids"])
    ids = list(reference("a", add_special_tokens=False)["input_ids"])
    return next(at for at in range(len(whole) + 1) if whole[at : at + len(ids)] == ids)


def _ids(reference: Any, text: str) -> list[int] | None:
    """The ids of a text; None if transformers raises an error, or has no id for a part of it."""
    try:
        ids = reference(text, add_special_tokens=False)["input_ids"]
    except Exception:
        return None
    return None if None in ids else list(ids)


def compare(*, num_texts: int = 300, every: int = 1) -> tuple[Comparison, list[str]]:
    """Compare every n-th case; also the names of the classes that were built."""
    compared, built = Comparison(), []
    with tempfile.TemporaryDirectory() as root:
        cases = [*side_file_cases(), *class_cases()]
        for number, case in enumerate(cases[::every]):
            if compare_case(case, Path(root) / f"t{number}", num_texts=num_texts, compared=compared):
                built.append(case.name)
    return compared, built
