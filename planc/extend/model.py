"""Model classes: any module from a config to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

MODEL = Kind("model", "model.architecture", passes=("config",))
M = TypeVar("M", bound=Callable[..., Any])


def model(name: str) -> Callable[[M], M]:
    """Register a model class: `model { hf = "DIR", architecture = NAME }`, where DIR has the config.json.

    A model is an `nn.Module` that is built from the config, and computes all its sizes from it. `forward`
    takes `input_ids` and, if positions matter, `position_ids`, both [batch, tokens], and returns logits
    [batch, tokens, vocabulary]. Layers are in an `nn.ModuleList`. Random weights come from each module's
    `reset_parameters`, and then from the class's own `_init_weights(module)`.

    planc builds it once in a process of its own, also with small sizes, and tries what it tries of classes of
    transformers: what feeds each module, where a token sees others, which heads can be shared out. A mesh
    that this does not show to compute the same is refused.
    """
    return lambda target: mark(MODEL, target, name)
