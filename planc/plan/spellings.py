"""Words of PyTorch, Python and YAML for what a plan writes otherwise."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
_BOOLS: Mapping[str, str] = {"true": "true", "yes": "true", "false": "false", "no": "false"}
_NONES = ("none", "null", "nil")
_POLICIES: Mapping[str, str] = {"CPUOffload": "true", "CPUOffloadPolicy": "true", "OffloadPolicy": "false"}
_STYLES: Mapping[str, str] = {
    "ColwiseParallel": "colwise",
    "RowwiseParallel": "rowwise",
    "SequenceParallel": "sequence_parallel",
    "PrepareModuleInput": "prepare_input",
    "PrepareModuleInputOutput": "prepare_input_output",
}
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def dtype_word(word: str, *, known: Container[str]) -> str | None:
    """`bfloat16` for `bf16` or `torch.bfloat16`, where that is known and the word itself is not."""
    bare = word.removeprefix("torch.")
    found = _DTYPES.get(bare.lower(), bare)
    return found if found != word and found in known else None


def bool_word(word: str) -> str | None:
    """`true` for `True` or `yes`."""
    return _BOOLS.get(word.lower())


def policy_bool(name: str) -> str | None:
    """`true` for `CPUOffload`, a class whose instances PyTorch takes."""
    return _POLICIES.get(name)


def style_word(name: str, *, known: Container[str]) -> str | None:
    """`colwise` for `ColwiseParallel`, where that is known."""
    found = _STYLES.get(name)
    return found if found in known else None


def is_number(text: str) -> bool:
    """Whether a string is a number as a plan writes it."""
    return _NUMBER.fullmatch(text) is not None


def is_none_word(word: str) -> bool:
    """Whether a word is another language's `none`."""
    return word.lower() in _NONES
