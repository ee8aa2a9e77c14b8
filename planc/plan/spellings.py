"""Words of PyTorch, Python and YAML for what a plan writes otherwise."""

from __future__ import annotations

from collections.abc import Container, Mapping

_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
_BOOLS: Mapping[str, str] = {"true": "true", "yes": "true", "false": "false", "no": "false"}
_NONES = ("none", "null", "nil")

_MASTER = (
    "stored parameters are the master weights: `dtype = float32` in `model`, "
    "and `param_dtype = bfloat16` in `fsdp` for compute"
)
_OFFLOAD = "write `cpu_offload = true` in `fsdp`"
_COMPILE = 'name the modules in a block: `compile { "model.layers.*" -> region }`'
_TRACKERS = 'trackers stand in a block: `logging { tracker "wandb" { project = "..." } }`'
_ABSENT: Mapping[str, str] = {
    **dict.fromkeys(("master_dtype", "master_weights", "main_params_dtype", "fp32_master_weights"), _MASTER),
    **dict.fromkeys(("cpu_offload", "offload_policy", "enable_cpu_offload"), _OFFLOAD),
    **dict.fromkeys(("compile", "torch_compile"), _COMPILE),
    **dict.fromkeys(("log", "report_to", "wandb", "tensorboard", "trackers"), _TRACKERS),
}
"""Keys and blocks of other tools that planc does without, each with what serves instead."""


def dtype_word(word: str, *, known: Container[str]) -> str | None:
    """`bfloat16` for `bf16` or `torch.bfloat16`, where that is known and the word itself is not."""
    bare = word.removeprefix("torch.")
    found = _DTYPES.get(bare.lower(), bare)
    return found if found != word and found in known else None


def bool_word(word: str) -> str | None:
    """`true` for `True` or `yes`."""
    return _BOOLS.get(word.lower())


def is_none_word(word: str) -> bool:
    """Whether a word is another language's `none`."""
    return word.lower() in _NONES


def absent(name: str) -> str | None:
    """What serves instead of another tool's key or block."""
    return _ABSENT.get(name)
