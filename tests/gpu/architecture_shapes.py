"""The attention shapes of the architectures in tests/models, from transformers' default configs alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.models.architectures import in_the_table


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Heads, key-value heads, their widths, and whether some layers have a window."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: bool

    def __str__(self) -> str:
        value = "" if self.value_dim == self.head_dim else f"/{self.value_dim}"
        return f"{self.heads} heads, {self.kv_heads} kv, {self.head_dim}{value}"


def shapes() -> dict[Shape, tuple[str, ...]]:
    """The architectures of each shape, in order. Those whose config has no heads are left out."""
    found: dict[Shape, list[str]] = {}
    for model_type in sorted(in_the_table()):
        for shape in _shapes(model_type):
            found.setdefault(shape, []).append(model_type)
    return {shape: tuple(found[shape]) for shape in sorted(found)}


def _shapes(model_type: str) -> Iterator[Shape]:
    # transformers takes seconds to import.
    from transformers import AutoConfig

    config: Any = AutoConfig.for_model(model_type).get_text_config(decoder=True)

    def size(name: str) -> int | None:
        # Some configs raise where layers differ.
        try:
            value = getattr(config, name, None)
        except (AttributeError, ValueError, RuntimeError):
            return None
        return value if isinstance(value, int) and value > 0 else None

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    if heads is None or hidden is None:
        return
    kv_heads, head_dim = size("num_key_value_heads") or heads, size("head_dim") or hidden // heads
    rope, rest = size("qk_rope_head_dim"), size("qk_nope_head_dim")
    if rope and rest:
        # Latent attention: keys have a part with positions and one without, and each query head its own.
        head_dim, kv_heads = rest + rope, heads
    yield Shape(heads, kv_heads, head_dim, size("v_head_dim") or head_dim, size("sliding_window") is not None)
