"""A tiny config.json of every architecture: the class's own defaults, made small.

`planc verify` shrinks models too, and knows what most numbers mean; what it does not know is in
`overrides.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planc.inventory.small_config import Config, Demands, shrink_config
from tests.models.overrides import OVERRIDES, SMALL
from tests.positions.sizes import TRAINED, sizes_of

SEQUENCE_LENGTH = 32
_MAX_LAYERS = 6
_PLAIN_LAYERS = 2
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Size:
    """The ranks of tp that a tiny model has heads for, and the experts of a mixture."""

    tp: int = 2
    num_experts: int = 4


SMALLEST = Size()


def tiny_config(model_type: str, architecture: str, *, size: Size = SMALLEST) -> Config:
    """The config.json: few layers, each kind among them.

    Raises whatever the class's own checks raise.
    """
    if model_type in TRAINED:
        return {**sizes_of(model_type), "architectures": [architecture], "model_type": model_type}
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class: Any = CONFIG_MAPPING[model_type]
    default = config_class()
    whole: dict[str, Any] = default.to_dict()
    aliases: dict[str, str] = config_class.attribute_map
    num_layers = whole.get(aliases.get("num_hidden_layers", "num_hidden_layers")) or _PLAIN_LAYERS
    overrides = OVERRIDES.get(model_type, {})
    kept = kept_layers(whole, num_layers=num_layers)
    demands = Demands(
        kept=kept,
        num_layers=num_layers,
        tp=size.tp,
        cp=2,
        divides_heads=True,
        num_shards=2,
        sequence_length=SEQUENCE_LENGTH * 16,
        short_length=SEQUENCE_LENGTH * 2,
    )
    small = shrink_config(whole, demands, aliases=aliases)
    small |= {"attention_dropout": 0.0} if "attention_dropout" in whole else {}
    small |= {name: value for name, value in SMALL.items() if whole.get(name) is not None}
    small |= {name: 1 for name in ("bos_token_id", "eos_token_id") if whole.get(name) is not None}
    small |= {"architectures": [architecture], "model_type": model_type}
    small |= overrides
    small |= {name: size.num_experts for name in _NUM_EXPERTS if small.get(name)}
    return {name: value for name, value in small.items() if name not in ("dtype", "torch_dtype")}


def kept_layers(config: Config, *, num_layers: int) -> tuple[int, ...]:
    """The numbers of the layers that stay: the first two, and the first of every further kind of any list."""
    kept = {0, min(1, num_layers - 1)}
    for value in config.values():
        if isinstance(value, list) and len(value) == num_layers:
            firsts = {str(kind): index for index, kind in reversed(tuple(enumerate(value)))}
            kept |= set(firsts.values())
    return tuple(sorted(kept))[:_MAX_LAYERS]
