"""Rotary embeddings that never change after the build."""

from __future__ import annotations

from typing import Any

_GROWING = "dynamic"
_STEADY = "default"


def steady_rope(model: Any) -> None:
    """Disable the growth of a model's dynamic NTK rotary embeddings.

    transformers' `dynamic_rope_update` recomputes them if a position is beyond `max_position_embeddings`, and
    checks this before every forward, which needs the values of positions. For longer sequences they were
    computed before (`scaled_rope`), so there is never anything to recompute.
    """
    for module in model.modules():
        match getattr(module, "rope_type", None):
            case str(kind) if _GROWING in kind:
                module.rope_type = _STEADY
            case dict(kinds):
                # One per kind of layer.
                steady = {layer: _STEADY if _GROWING in kind else kind for layer, kind in kinds.items()}
                module.rope_type = steady
