"""Conversion between a checkpoint's tensors and a model's, both ways, as transformers does it.

transformers renames, stacks and joins: it stacks each expert's own tensors into one of all experts. Its own
rules run here on views, so a rank reads no more than its share, and an export has the names that transformers
itself would have saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from planc.modeling.language_part import whole_of
from planc.modeling.tasks import names_of_other_heads
from planc.runtime.errors import RunError
from planc.runtime.torch.weights.views import UnknownOperation, View


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model's tensors in a checkpoint, by their names in the model.

    `problems` explain which of them can't be made; `unexpected` are keys that the model has no place for,
    `ignored` such keys that transformers skips for this architecture, or of a masked model's other heads.
    """

    views: dict[str, View] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    encoder: dict[str, View] = field(default_factory=dict)
    """Tensors of the whole's image encoder, of a model that is the language part alone."""


def to_model(model: PreTrainedModel, stored: Mapping[str, View]) -> Conversion:
    """The model's tensors, made from those of a checkpoint. `model` is pristine: none of it is sharded.

    RunError if the architecture needs an operation that planc does not support.
    """
    conversion, own, model = Conversion(), model.state_dict().keys(), whole_of(model)
    gathered: dict[str, Any] = {}
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    wanted, prefix = model.state_dict(), model.base_model_prefix
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, prefix, wanted)
        if name not in wanted and key in wanted:
            name, pattern = key, None
        if name not in wanted:
            (conversion.ignored if _is_ignored(model, name) else conversion.unexpected).append(key)
        elif name not in own:
            conversion.encoder[name] = stored[key]
        elif name in conversion.views or (name in gathered and pattern is None):
            conversion.problems.append(f"{key} is a duplicate of {name}")
        elif pattern is None:
            conversion.views[name] = stored[key]
        else:
            transform = gathered.setdefault(name, deepcopy(by_pattern[pattern]))
            transform.add_tensor(name, key, pattern, stored[key])
    if conversion.unexpected:
        others = names_of_other_heads(model)
        conversion.ignored.extend(key for key in conversion.unexpected if key in others)
        conversion.unexpected[:] = [key for key in conversion.unexpected if key not in others]
    for name, transform in gathered.items():
        try:
            conversion.views.update(_converted(model, name, transform))
        except UnknownOperation as error:
            raise _unknown(model, name, error) from error
        except (ValueError, RuntimeError) as error:
            conversion.problems.append(f"{name} can't be made from the tensors in the files: {error}")
    return conversion


def to_checkpoint(model: PreTrainedModel, held: Mapping[str, View]) -> dict[str, View]:
    """The tensors that `save_pretrained` would write for a model, by key; `model` as above."""
    try:
        views: dict[str, View] = revert_weight_conversion(whole_of(model), dict(held))
    except UnknownOperation as error:
        raise _unknown(model, "its weights", error) from error
    return views


def _converted(model: PreTrainedModel, name: str, transform: Any) -> dict[str, View]:
    made = transform.convert(name, model=model, config=model.config)
    return {key: value[0] if isinstance(value, list) else value for key, value in made.items()}


def _is_ignored(model: PreTrainedModel, name: str) -> bool:
    """Whether transformers skips a key of this name on purpose: old buffers, layers for inference."""
    patterns = set(model._keys_to_ignore_on_load_unexpected or ())
    buffers = [buffer for buffer, _ in model.named_buffers()]
    # Buffers that older checkpoints have in every layer; transformers computes them.
    if any(buffer.endswith("rotary_emb.inv_freq") for buffer in buffers):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(buffer.endswith("position_ids") for buffer in buffers):
        patterns.add(r"(^|\.)position_ids$")
    return any(re.search(pattern, name) for pattern in patterns)


def _unknown(model: PreTrainedModel, name: str, error: UnknownOperation) -> RunError:
    return RunError(
        f"planc cannot convert {name} of {type(model).__name__}: "
        f"transformers uses {error} for it, which planc can't do by slices",
        help="use weights = random, or a checkpoint in the model's own names and shapes, "
        "as save_pretrained(save_original_format=False) writes it",
    )
