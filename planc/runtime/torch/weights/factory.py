"""The one place that makes a model: by its class in transformers, or by the plan's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from planc.extend.reference import Extension
from planc.graph.ops import BuildClassifier, BuildEmbedder, BuildModel
from planc.modeling.language_part import language_config
from planc.modeling.own_class import config_of, model_class_of
from planc.modeling.tasks import as_classifier, class_of, head_options
from planc.runtime.errors import RunError
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.model_files import read_config, refuse_remote_code


def own_class(own: Extension, *, base: Path, is_allowed: bool) -> type[PreTrainedModel]:
    """The plan's own model class. RunError if its code may not run, or if it is not such a class."""
    registered = load_extension(own, base=base, is_allowed=is_allowed)
    try:
        return model_class_of(registered, name=own.entry, arguments=arguments_of(own))
    except TypeError as error:
        raise RunError(
            f"{own.file}: {error}", help="write `def forward(self, input_ids, position_ids)`"
        ) from error


def config_in(
    folder: Path, own: type[PreTrainedModel] | None, build: BuildModel | None = None
) -> PreTrainedConfig:
    """The config of a model's directory, for the plan's own class or for transformers' own.

    It is of a classifier if `build` gives the model a new head.
    """
    refuse_remote_code(folder)
    if own is not None:
        return config_of(own, read_config(folder))
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    if isinstance(build, BuildClassifier):
        as_classifier(config, architecture=build.architecture, labels=build.labels)
    if isinstance(build, BuildEmbedder):
        config.architectures = [build.architecture]
    return config


def on_meta(
    config: PreTrainedConfig, own: type[PreTrainedModel] | None, *, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """The whole model of a config, without memory and with the attention of its own code.

    Some classes choose their attention's code once, when they are built; all of them have eager.
    """
    options: Any = {"attn_implementation": "eager", **({} if dtype is None else {"dtype": dtype})}
    kind = own or class_of(config)
    with torch.device("meta"):
        model: PreTrainedModel = kind._from_config(language_config(config), **options, **head_options(kind))
    return model
