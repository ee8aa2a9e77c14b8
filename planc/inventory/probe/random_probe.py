"""Detect what training a model draws at random, by runs on the meta device. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import field

from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.attention_calls import OWN
from planc.inventory.probe.dropout_probe import Training, draws_of, training_of
from planc.inventory.schema import Draw
from planc.inventory.small_config import random_fields
from planc.record import record

_DRAWS_IN_VAIN = frozenset(("phimoe",))
"""Model types that draw without effect: without jitter, there is one candidate to choose from."""

Build = Callable[[PreTrainedConfig, str], PreTrainedModel]
"""Builds a model from a config and the name of an attention."""


@record
class Randomness:
    """Fields of the config by which training draws random numbers, and the dropouts by module.

    Of the `fields`, `weights` drop attention weights, and `others` draw by other means than dropout.
    """

    fields: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    draws: Mapping[str, tuple[Draw, ...]] = field(default_factory=dict)


def randomness_of(
    seen: Training,
    model: PreTrainedModel,
    *,
    config: PreTrainedConfig,
    build: Build,
    recorded: Collection[str],
) -> Randomness:
    """Return training's draws, after `seen`. InventoryError for a model that draws without config fields.

    Sources of dropouts are among the `recorded` modules.
    """
    if not seen.is_random:
        return Randomness()
    fields = random_fields(config.to_dict())
    least = training_of(build(_quiet(config, fields), str(model.config._attn_implementation)))
    if least.is_random and config.model_type not in _DRAWS_IN_VAIN:
        where = f", even if {', '.join(fields)} are 0" if fields else ""
        raise InventoryError(
            f"{type(model).__name__} draws random numbers in training, which differ between meshes{where}",
            help="set the probabilities in config.json to 0, or use a model that draws none"
            if fields
            else "remove dropouts from the class, or read their probability from config.json and set it to 0",
        )
    if not fields:
        return Randomness()
    try:
        return _placed(config, fields, build=build, recorded=recorded, in_vain=least.num_others)
    except Exception:
        # The model's own attention may not run without values, whatever others do.
        return Randomness(fields, others=fields)


def _placed(
    config: PreTrainedConfig,
    fields: tuple[str, ...],
    *,
    build: Build,
    recorded: Collection[str],
    in_vain: int,
) -> Randomness:
    """The dropouts, with the model's own attention: only it shows which module drops its weights."""
    weights, others = [], []
    for name in fields:
        alone = build(_quiet(config, tuple(one for one in fields if one != name)), OWN)
        if training_of(alone).num_others > in_vain:
            others.append(name)
        elif any(draw.is_of_weights for found in draws_of(alone).values() for draw in found):
            weights.append(name)
    # Layers that are dropped at random call nothing.
    draws = draws_of(build(_quiet(config, tuple(others)), OWN), recorded=recorded)
    return Randomness(fields, tuple(weights), tuple(others), draws)


def _quiet(config: PreTrainedConfig, fields: tuple[str, ...]) -> PreTrainedConfig:
    quiet = deepcopy(config)
    for name in fields:
        setattr(quiet, name, 0.0)
    return quiet
