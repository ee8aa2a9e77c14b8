"""Scaled rotary embeddings in a config.json, by which a model reaches more positions. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from planc.record import record

DEFAULT, DYNAMIC = "default", "dynamic"
_SCALED = ("linear", DYNAMIC, "yarn", "longrope", "llama3")
_FIELDS = ("rope_parameters", "rope_scaling")
"""transformers 4 has the second."""


@record
class Rope:
    """Rotary embeddings for `factor` times as many positions as the `original` ones."""

    kind: str = DEFAULT
    factor: float = 1.0
    original: int | None = None
    """None for as many as the config's max_position_embeddings."""
    by_layer: bool = False
    """Whether each kind of layer has its own, of which this is the one that reaches the fewest positions."""

    def reach(self, positions: int) -> int:
        """The positions that a model reaches whose max_position_embeddings are these."""
        return max(positions, int((self.original or positions) * self.factor))


def rope_of(config: Mapping[str, object]) -> Rope | None:
    """Return a config.json's rotary embeddings; None if it states none."""
    whole = next((found for name in _FIELDS if isinstance(found := config.get(name), Mapping)), None)
    if whole is None:
        return Rope() if config.get("rope_theta") is not None else None
    kinds = [_rope(one, config) for one in whole.values() if isinstance(one, Mapping)]
    if not kinds:
        return _rope(whole, config)
    fewest = min(kinds, key=lambda one: one.factor)
    return Rope(fewest.kind, 1.0 if fewest.kind == DYNAMIC else fewest.factor, fewest.original, by_layer=True)


def _rope(parameters: Mapping[str, object], config: Mapping[str, object]) -> Rope:
    kind, factor = parameters.get("rope_type", parameters.get("type")), parameters.get("factor")
    # A config that has it outside goes by that (standardize_rope_params in modeling_rope_utils).
    name = "original_max_position_embeddings"
    original = config.get(name, parameters.get(name))
    return Rope(
        kind if isinstance(kind, str) else DEFAULT,
        float(factor) if kind in _SCALED and isinstance(factor, int | float) and factor > 1 else 1.0,
        original if isinstance(original, int) and original > 0 else None,
    )
