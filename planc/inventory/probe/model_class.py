"""The config.json of a directory, and its class in transformers. Imports transformers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from planc.inventory.config_limits import fields_of, line_of
from planc.inventory.files import CONFIG_NAME, InventoryError, parse_json
from planc.inventory.limits import refuse_remote_code
from planc.inventory.probe.image_probe import encoder_of
from planc.inventory.schema import ImageEncoder
from planc.modeling.language_part import language_config, language_part, sees_images
from planc.modeling.own_class import config_of
from planc.modeling.tasks import CLASSES, ONE_CLASS, as_classifier, new_parameters, tasks_of, token_types
from planc.vocab import CLASSIFIERS, Classes, Task

_ROPE_TYPES = ("rope_type", "type")
"""The key, and its name in older files."""
_SEES_PADDING = ("minimax",)
"""Model types whose classifiers give a text other logits with padding than alone."""


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The class of a model, and the config of which it is built."""

    config: PreTrainedConfig
    model_class: type[PreTrainedModel]
    task: Task
    base: str | None = None
    """The class that config.json names, if it has another head."""
    has_new_head: bool = False
    images: ImageEncoder | None = None
    """The encoder of images in the whole of which the model is the language part."""

    def fields_of(self, model: PreTrainedModel) -> dict[str, Any]:
        """The fields of an inventory that the class and its config state. InventoryError for a used head."""
        config = self.config
        return {
            "architecture": self.model_class.__name__,
            "model_type": config.model_type,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "max_positions": getattr(config, "max_position_embeddings", None),
            "images": self.images,
            **self._fields_of_task(model),
        }

    def _fields_of_task(self, model: PreTrainedModel) -> dict[str, Any]:
        if self.task is Task.EMBEDDING:
            return {"task": self.task, "padding_token": getattr(self.config, "pad_token_id", None)}
        if self.task is Task.SEQ2SEQ_LM:
            start = self.config.decoder_start_token_id
            return {"task": self.task, "padding_token": self.config.pad_token_id, "start_token": start}
        if self.task not in CLASSIFIERS:
            return {"task": self.task}
        new = new_parameters(model, self.base) if self.has_new_head else ()
        if new is None:
            raise InventoryError(
                f"the plan trains a new classifier, and config.json names {self.base}, which has the head of "
                "another task than pretraining",
                help="use the pretrained model that it was made from",
            )
        own = {"num_labels": self.config.num_labels, "padding_token": self.config.pad_token_id}
        if self.task is Task.SEQUENCE_CLASSIFICATION:
            own["token_types"] = token_types(model)
        return {"task": self.task, "new_head": new, **own}


def read_model_class(
    content: bytes,
    *,
    model_dir: Path,
    own: type[PreTrainedModel] | None = None,
    classes: Classes | None = None,
) -> ModelClass:
    """The class of a config.json with this content, which is the plan's `own` if it has one. With
    `classes` it is the classifier of that model, with a new head, or the model without one.

    InventoryError if transformers has no such class.
    """
    path = model_dir / CONFIG_NAME
    if own is not None:
        return ModelClass(_read_own_config(content, own, path=path), own, Task.CAUSAL_LM)
    raw = parse_json(content, name=str(path))
    if not isinstance(raw, dict):
        raise InventoryError(f"{path} is not a JSON object", help="use the config.json of the model")
    refuse_remote_code(content, path=path)
    model_type, architectures = raw.get("model_type"), raw.get("architectures")
    tasks = tasks_of(model_type)
    if classes is None:
        tasks = {name: task for name, task in tasks.items() if task is not Task.EMBEDDING}
    named = architectures
    if classes is not None:
        architectures = [_class_for(model_type, classes.task, path=path)]
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in tuple(tasks):
        raise InventoryError(
            f"{path}: transformers has no language model or classifier with model_type {model_type!r} "
            f"and architectures {architectures!r}",
            help=_class_help(model_type, architectures, names=tuple(tasks)),
        )
    try:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        is_text_alone = not _has_models_inside(config) and config.get_text_config() is config
    except Exception as error:
        raise InventoryError(f"{path}: {error}", help="correct the values in config.json") from error
    _refuse_unknown_rope(config, raw, text=content.decode("utf-8"), path=path)
    if sees_images(config):
        images = encoder_of(config, path=path)
        return ModelClass(language_config(config), language_part(config), Task.CAUSAL_LM, images=images)
    if not is_text_alone:
        raise InventoryError(
            f"{path} describes a multimodal or composite model",
            help="use the configuration of its language model only",
        )
    model_class, task = getattr(transformers, architectures[0]), tasks[architectures[0]]
    if task is Task.SEQ2SEQ_LM or config.is_encoder_decoder:
        _refuse_encoder_decoder(config, task, path=path)
    if task is Task.EMBEDDING:
        config.architectures = architectures
    elif classes is not None:
        as_classifier(config, architecture=architectures[0], labels=classes.labels)
    if task in CLASSIFIERS or task is Task.EMBEDDING:
        _refuse_classifier(config, task, path=path)
    if task is Task.TOKEN_CLASSIFICATION:
        _state_dropout(config)
    base = named[0] if isinstance(named, list) and len(named) == 1 else None
    return ModelClass(config, model_class, task, base, has_new_head=classes is not None)


def _class_for(model_type: object, task: Task, *, path: Path) -> str:
    """The class of a model type. InventoryError if transformers has none of this task."""
    names = CLASSES[task]
    name = names.get(model_type) if isinstance(model_type, str) else None
    if not isinstance(name, str):
        raise InventoryError(
            f"{path}: transformers has no class for {task} with model_type {model_type!r}",
            help='use a model that it has one of, such as "bert" or "llama"',
        )
    return name


def _refuse_encoder_decoder(config: PreTrainedConfig, task: Task, *, path: Path) -> None:
    """InventoryError for a task of one stack, and without the tokens that a decoder is given."""
    if task is Task.CAUSAL_LM:
        return
    if task is not Task.SEQ2SEQ_LM:
        raise InventoryError(
            f"{path} describes an encoder-decoder, whose logits are its decoder's",
            help="write `task = seq2seq_lm` in `model`, or use an encoder with a head for this task",
        )
    if not config.is_encoder_decoder:
        raise InventoryError(
            f"{path}: `is_encoder_decoder` is false, and the class is one",
            help='set "is_encoder_decoder" to true',
        )
    for name, use in _TOKENS_OF_DECODER.items():
        token, fault = getattr(config, name, None), ""
        if type(token) is not int:
            fault = f"has no `{name}`, {use}"
        elif not 0 <= token < config.vocab_size:
            fault = f"has {token} for `{name}`, and the vocabulary has {config.vocab_size} tokens"
        if fault:
            help = f'set "{name}" to the token that the model was pretrained with'
            raise InventoryError(f"{path} {fault}", help=help)
    if getattr(config, "attention_type", None) == "block_sparse":
        raise InventoryError(
            f"{path}: `attention_type` is block_sparse, and tokens see others by the length of their text",
            help='set "attention_type" to "original_full"',
        )


_TOKENS_OF_DECODER = {
    "decoder_start_token_id": "with which a decoder begins",
    "pad_token_id": "with which an encoder-decoder fills up shorter texts",
}


_DROPOUT = 0.1
"""The dropout before the head of transformers' token classifiers whose config has no field for it."""


def _state_dropout(config: PreTrainedConfig) -> None:
    """Give the head's dropout a field, by which `dropout = false` finds it."""
    if not hasattr(config, "classifier_dropout") and getattr(config, "hidden_dropout", None) is None:
        config.classifier_dropout = _DROPOUT


def _refuse_classifier(config: PreTrainedConfig, task: Task, *, path: Path) -> None:
    """InventoryError for classifiers of another kind of classes, and for those that can't pad a text."""
    of_texts = task is Task.SEQUENCE_CLASSIFICATION
    kind = getattr(config, "problem_type", None)
    if of_texts and kind not in (None, ONE_CLASS):
        raise InventoryError(
            f"{path}: problem_type is {kind!r}, and planc trains one class for each text",
            help=f'set "problem_type" to "{ONE_CLASS}"',
        )
    if of_texts and getattr(config, "pad_token_id", None) is None:
        raise InventoryError(
            f"{path} has no `pad_token_id`, with which a classifier fills up shorter texts",
            help='set "pad_token_id" to a token that no text has, such as the tokenizer\'s own for padding',
        )
    if config.model_type in _SEES_PADDING:
        raise InventoryError(
            f"{path}: {config.model_type} attends to blocks of tokens, and texts see their padding",
            help="use another model for this task",
        )


_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers")


def _read_own_config(content: bytes, model_class: type[PreTrainedModel], *, path: Path) -> PreTrainedConfig:
    """The config of a file with this content, for a plan's own class. InventoryError if it lacks a size."""
    raw = parse_json(content, name=str(path))
    if not isinstance(raw, dict):
        raise InventoryError(f"{path} is not a JSON object", help="write the sizes of the model in it")
    try:
        config = config_of(model_class, raw)
    except Exception as error:
        raise InventoryError(f"{path}: {error}", help="correct the values in config.json") from error
    missing = [name for name in _REQUIRED if type(getattr(config, name, None)) is not int]
    if missing:
        raise InventoryError(
            f"{path} has no `{missing[0]}`, by which planc knows the sizes of a model",
            help=f"write {', '.join(f'`{name}`' for name in _REQUIRED)}, and `num_attention_heads` and "
            "`num_key_value_heads` if it has attention, and build the modules from these values",
        )
    return config


def _refuse_unknown_rope(config: PreTrainedConfig, raw: dict[str, object], *, text: str, path: Path) -> None:
    """InventoryError for rotary embeddings that transformers does not know, which it says by a KeyError."""
    known = ("default", *ROPE_INIT_FUNCTIONS)
    whole = getattr(config, "rope_parameters", None) or {}
    for one in (whole, *whole.values()):
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if not isinstance(kind, str) or kind in known:
            continue
        names = (field for field, value, _ in fields_of(raw) if value == kind and field[-1] in _ROPE_TYPES)
        field = next(names, ())
        place = f"{path}:{line_of(text, field)}: `{'.'.join(field)}`" if field else f"{path}: `rope_type`"
        raise InventoryError(
            f'{place} is "{kind}", and must be one of {", ".join(sorted(known))}',
            help="Correct this value in config.json.",
        )


def _has_models_inside(config: PreTrainedConfig) -> bool:
    """Whether the configuration contains those of other models, such as an image or audio encoder.

    Some have their own language model around it, without a `text_config` that would show this.
    """
    inside = (config.sub_configs or {}).values()
    return any(one is AutoConfig or one.model_type in CONFIG_MAPPING_NAMES for one in inside)


_OWN = (
    "for a class of your own, name its file with `extension` and write `architecture = NAME` in `model`  "
    "(planc explain extension)"
)
_CLOSE = 0.8
"""The least likeness of a slip: `lama` and `llama`, but not `mynet` and `xlnet`."""


def _class_help(model_type: object, architectures: object, *, names: Sequence[str]) -> str:
    """Return the help to name the class that is meant; never for another task than the named class's."""
    if names:
        near = _near(architectures[0], names) if isinstance(architectures, list) and architectures else names
        if near:
            return f'set "architectures": ["{near[0]}"]'
        return f"planc trains causal and masked language models of transformers, such as {names[0]}; {_OWN}"
    near = _near(model_type, {name for classes in CLASSES.values() for name in classes})
    if near:
        return f'did you mean "model_type": "{near[0]}"?'
    return f'set "model_type" to a language model of transformers, such as "llama" or "bert"; {_OWN}'


def _near(name: object, known: Iterable[str]) -> Sequence[str]:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=_CLOSE) if isinstance(name, str) else ()
