"""The classes that transformers has for each task. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from planc.modeling.language_part import SEEING, language_part, sees_images
from planc.vocab import CLASSIFIERS, Task

CLASSES: Mapping[Task, Mapping[str, str | tuple[str, ...]]] = {
    Task.CAUSAL_LM: {
        **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **{kind: MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind] for kind in SEEING},
    },
    Task.SEQ2SEQ_LM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    Task.MASKED_LM: MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    Task.SEQUENCE_CLASSIFICATION: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    Task.TOKEN_CLASSIFICATION: MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    Task.EMBEDDING: MODEL_MAPPING_NAMES,
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
    """The class that a config names, or that of its language part. ValueError for one that has no task."""
    names: list[str] = config.architectures or []
    if sees_images(config):
        return language_part(config)
    if len(names) != 1 or names[0] not in tasks_of(config.model_type):
        raise ValueError(f"no language model with model_type {config.model_type!r} and architectures {names}")
    model_class: type[PreTrainedModel] = getattr(transformers, names[0])
    return model_class


ONE_CLASS = "single_label_classification"


def as_classifier(config: PreTrainedConfig, *, architecture: str, labels: int) -> None:
    """Change a config of another head into that of a classifier."""
    config.architectures, config.num_labels = [architecture], labels
    # transformers rejects it for one class, of which a check tells more.
    if architecture.endswith(CLASSIFIERS[Task.SEQUENCE_CLASSIFICATION]) and labels > 1:
        config.problem_type = ONE_CLASS


def head_options(kind: type[PreTrainedModel]) -> Mapping[str, bool]:
    """The arguments with which a class makes no pooler: an embedding is of the hidden states before it."""
    has_pooler = "add_pooling_layer" in signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def output_of(output: Any) -> torch.Tensor:
    """The logits of a model, or the last hidden states of one without a head."""
    logits: torch.Tensor | None = getattr(output, "logits", None)
    return output.last_hidden_state if logits is None else logits


def token_types(model: PreTrainedModel) -> int:
    """The number of types, `token_type_ids`, that a model tells apart; 0 for none, and for one type alone.

    A decoder without `type_vocab_size` may look types up among its tokens, and its tokenizer makes none.
    """
    number = getattr(model.config, "type_vocab_size", None) or 0
    return number if number > 1 and "token_type_ids" in signature(model.forward).parameters else 0


def names_of_other_heads(model: PreTrainedModel) -> frozenset[str]:
    """The tensors that pretraining has and the model's class leaves out: a pooler, the head of another task.

    Published checkpoints hold them.
    """
    if task_of(model) is Task.CAUSAL_LM:
        return frozenset()
    names = {name for of in _pretraining_classes(model).values() for name in of()}
    return frozenset(names - model.state_dict().keys())


def new_parameters(model: PreTrainedModel, named: str | None) -> tuple[str, ...] | None:
    """A classifier's parameters that the class of this name lacks; without a name, the model without a head.

    None for a class that is not of pretraining: its head may have the names of this one's tensors.
    """
    if (names_in := _pretraining_classes(model).get(named)) is None:
        return None
    known = names_in()
    return tuple(name for name, _ in model.named_parameters() if name not in known)


def _pretraining_classes(model: PreTrainedModel) -> Mapping[str | None, Callable[[], frozenset[str]]]:
    """The classes for pretraining and, as None too, the one without a head; each with the names that its
    tensors have in the model."""
    classes: dict[str | None, Callable[[], frozenset[str]]] = {}
    # An encoder's causal head has the names of its masked one, and its class warns of how it is used.
    masked = MODEL_FOR_MASKED_LM_MAPPING.get(type(model.config), None)
    language = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), None) if masked is None else masked
    for kind in (language, MODEL_FOR_PRETRAINING_MAPPING.get(type(model.config), None)):
        if kind is not None:
            classes[kind.__name__] = partial(_names_in, kind, model)
    if (base := MODEL_MAPPING.get(type(model.config), None)) is not None:
        prefix = f"{model.base_model_prefix}."
        classes[base.__name__] = classes[None] = partial(_names_in, base, model, prefix)
        if isinstance(model, base):
            # A file of the base class has its pooler without a prefix.
            classes[None] = partial(_names_in, base, model)
    return classes


def _names_in(kind: type[PreTrainedModel], model: PreTrainedModel, prefix: str = "") -> frozenset[str]:
    # A model's modules look up their attention in the config that it would share with this one.
    config = deepcopy(model.config)
    with torch.device("meta"):
        whole = kind._from_config(config, attn_implementation="eager")
    return frozenset(f"{prefix}{name}" for name in whole.state_dict())
