"""Rotary embeddings as a plan has them: scaled by its config, and never changed after the build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


_OWN = ("rope_theta", "partial_rotary_factor")
"""Fields of config.json that a scaling leaves."""
_ORIGINAL = "original_max_position_embeddings"


def scale_rope(config: Any, stated: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    """Set a config's rotary embeddings to what is stated; return the entries of config.json that differ.

    A config that states its original positions has as many as the model reaches, as Llama 3.1's has.
    ValueError if it has no rotary embeddings, or some for each kind of layer.
    """
    parameters = dict(stated)
    own = getattr(config, "rope_parameters", None)
    if not own or any(isinstance(one, Mapping) for one in own.values()):
        raise ValueError("config.json has no rotary embeddings that are the same in all layers")
    changes: dict[str, Any] = {
        "rope_parameters": {name: own[name] for name in _OWN if name in own} | parameters
    }
    if _ORIGINAL in parameters:
        if hasattr(config, _ORIGINAL):
            changes[_ORIGINAL] = parameters[_ORIGINAL]
        changes["max_position_embeddings"] = int(parameters[_ORIGINAL] * parameters["factor"])
    for name, value in changes.items():
        setattr(config, name, value)
    return changes


def grow_rope(config: Any, *, length: int) -> None:
    """Compute dynamic rotary embeddings for sequences of this length, once.

    transformers does in a forward that sees as many positions (_compute_dynamic_ntk_parameters in its
    modeling_rope_utils.py). On a rank with a part of the sequence it would see fewer.
    """
    own = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(head_dim * own.get("partial_rotary_factor", 1.0))
    grown = own["factor"] * length / config.max_position_embeddings - (own["factor"] - 1)
    config.rope_parameters = {
        **{name: own[name] for name in _OWN if name in own},
        "rope_type": "default",
        "rope_theta": own["rope_theta"] * grown ** (dim / (dim - 2)),
    }
