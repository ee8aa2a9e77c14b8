"""The config.json of a directory, and its class in transformers. Imports transformers."""

from __future__ import annotations

import difflib
from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from planc.inventory.config_limits import fields_of, line_of
from planc.inventory.files import CONFIG_NAME, InventoryError, parse_json
from planc.inventory.refused_code import refuse_remote_code

_ROPE_TYPES = ("rope_type", "type")
"""The key, and its name in older files."""


def read_model_class(content: bytes, *, model_dir: Path) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """The config of a file with this content, and its class. InventoryError if transformers lacks it."""
    path = model_dir / CONFIG_NAME
    raw = parse_json(content, name=str(path))
    if not isinstance(raw, dict):
        raise InventoryError(f"{path} is not a JSON object", help="use the config.json of the model")
    refuse_remote_code(content, path=path)
    model_type, architectures = raw.get("model_type"), raw.get("architectures")
    names = _causal_lm_names(model_type)
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in names:
        raise InventoryError(
            f"{path}: transformers has no causal language model with model_type {model_type!r} "
            f"and architectures {architectures!r}",
            help=f'set "architectures": ["{names[0]}"]' if names else _model_type_help(model_type),
        )
    try:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        is_text_alone = not _has_models_inside(config) and config.get_text_config() is config
    except Exception as error:
        raise InventoryError(f"{path}: {error}", help="correct the values in config.json") from error
    _refuse_unknown_rope(config, raw, text=content.decode("utf-8"), path=path)
    if not is_text_alone:
        raise InventoryError(
            f"{path} describes a multimodal or composite model",
            help="use the configuration of its language model only",
        )
    return config, getattr(transformers, architectures[0])


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


def _model_type_help(model_type: object) -> str:
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    near = difflib.get_close_matches(model_type, known, n=1) if isinstance(model_type, str) else ()
    if near:
        return f'did you mean "model_type": "{near[0]}"?'
    return 'set "model_type" to a causal language model of transformers, such as "llama" or "qwen3"'


def _causal_lm_names(model_type: object) -> tuple[str, ...]:
    if not isinstance(model_type, str):
        return ()
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)
