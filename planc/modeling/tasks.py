"""The classes that transformers has for each task. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers
from transformers import (
    MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from planc.vocab import Task

CLASSES: Mapping[Task, Mapping[str, str | tuple[str, ...]]] = {
    Task.CAUSAL_LM: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    Task.MASKED_LM: MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    Task.SEQUENCE_CLASSIFICATION: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""Their names by model_type. A class of several tasks has the first."""


def tasks_of(model_type: object) -> Mapping[str, Task]:
    """The task of each class that transformers has for a model_type, by the class's name."""
    tasks: dict[str, Task] = {}
    for task, classes in CLASSES.items():
        names = classes.get(model_type, ()) if isinstance(model_type, str) else ()
        for name in (names,) if isinstance(names, str) else names:
            tasks.setdefault(name, task)
    return tasks


def task_of(model: PreTrainedModel) -> Task:
    """The task of a model; of a plan's own class, the only one that it can have."""
    return tasks_of(model.config.model_type).get(type(model).__name__, Task.CAUSAL_LM)


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that a config names. ValueError for one that has no task."""
    names: list[str] = config.architectures or []
    if len(names) != 1 or names[0] not in tasks_of(config.model_type):
        raise ValueError(f"no language model with model_type {config.model_type!r} and architectures {names}")
    model_class: type[PreTrainedModel] = getattr(transformers, names[0])
    return model_class


def names_of_other_heads(model: PreTrainedModel) -> frozenset[str]:
    """The tensors that a masked model's pretraining has and its class leaves out: a pooler, a second head.

    Published checkpoints hold them.
    """
    config = model.config
    if task_of(model) is not Task.MASKED_LM:
        return frozenset()
    names: set[str] = set()
    for mapping, prefix in (
        (MODEL_FOR_PRETRAINING_MAPPING, ""),
        (MODEL_MAPPING, f"{model.base_model_prefix}."),
    ):
        if type(config) in mapping:
            with torch.device("meta"):
                whole = mapping[type(config)]._from_config(config)
            names |= {f"{prefix}{name}" for name in whole.state_dict()}
    return frozenset(names - model.state_dict().keys())
