"""What a config trains, as a person who reads it and its tool's documents writes it down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LAYERS = 4
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
MATRICES = frozenset(
    f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in (*ATTENTION, *MLP)
) | {"model.embed_tokens.weight", "lm_head.weight"}
NORMS = frozenset(
    f"model.layers.{layer}.{name}_layernorm.weight"
    for layer in range(LAYERS)
    for name in ("input", "post_attention")
) | {"model.norm.weight"}


@dataclass(frozen=True)
class Rate:
    """A schedule as its tool computes it: the factor of the peak at the zero-based step `done`."""

    peak: float
    steps: int
    warmup: int = 0
    shape: str = "constant"
    lowest: float = 0.0
    decay: int | None = None
    starts_at: int = 0
    """The zero-based number that the tool gives to the first step of warm-up."""

    def at(self, step: int) -> float:
        done = step - 1
        if done < self.warmup:
            return self.peak * (done + self.starts_at) / self.warmup
        length = self.decay if self.decay is not None else self.steps - self.warmup
        progress = max(0, done - (self.steps - length)) / max(1, length)
        falls: Mapping[str, Callable[[float], float]] = {
            "constant": lambda share: 0.0,
            "linear": lambda share: share,
            "cosine": lambda share: (1 - math.cos(math.pi * share)) / 2,
        }
        return self.peak * (1 - (1 - self.lowest) * falls[self.shape](progress))


@dataclass(frozen=True)
class Training:
    """What a config trains. Epochs instead of `rate` where only the data tell the number of steps."""

    rate: Rate | None = None
    epochs: str = ""
    peak: float = 0.0
    decay: float = 0.0
    decayed: frozenset[str] = MATRICES
    """Parameters that decay, where `decay` is not 0."""
    clip: float | None = 1.0
    compute: str = "bfloat16"
    data: str = "text"
    """`text`, `chat:` with what is trained on, or pairs with their loss."""
    weights: str = "pretrained"
    adapters: frozenset[str] = frozenset()
    lora: tuple[int, float, float, bool] | None = None
    """Rank, alpha, dropout, and whether the scale is by the root of the rank."""
    dora: bool = False
    frozen: frozenset[str] = frozenset()
    shards: int = 1
    tokens: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    optimizer: str = "AdamW"


@dataclass(frozen=True)
class Case:
    name: str
    files: Mapping[str, str]
    expected: Training | frozenset[str]
    """What it trains, or the keys that no plan can have."""
    options: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
