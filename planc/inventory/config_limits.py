"""Limits on the values of a config.json, and facts that no forward without values shows. No torch here.

A model is built to be inspected: an absurd number of layers would keep the build busy for hours, and a value
that is not a number at all fails somewhere inside it. Nested configurations have the same limits.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planc.inventory.files import InventoryError

MAX_LAYERS = 1_000
"""The deepest published model that transformers has a class for, Llama 3.1 405B, has 126."""
MAX_HEADS = 2**16
MAX_EXPERTS = 2**16
MAX_SIZE = 2**31 - 1
"""The largest dimension: vocabularies and positions are the largest, with some 10^7."""
MAX_NUMBER = 2**63 - 1
MAX_DEPTH = 32
MAX_VALUES = 50_000
"""The most scalar values in a file; lists of layers and of modules have hundreds."""

_HELP = "correct this value in config.json"
_LAYERS = re.compile(r"(?:num_(?:hidden_|decoder_|encoder_|\w+_)?|n_|decoder_|encoder_)layers?")
_HEADS = re.compile(
    r"(?:num_(?:attention_|key_value_|query_)?|n_|decoder_attention_|encoder_attention_)heads?"
)
_EXPERTS = re.compile(r"(?:num_(?:local_|routed_|shared_)?|n_(?:routed_|shared_)?)experts")
_SIZES = re.compile(
    r"hidden_size|vocab_size|intermediate_size|moe_intermediate_size|head_dim|n_embd|n_inner|n_positions|n_ctx"
    r"|d_model|d_ff|ffn_dim|max_position_embeddings"
)
_AT_LEAST_ONE = re.compile(
    rf"(?:{_HEADS.pattern})|num_hidden_layers|n_layers?|hidden_size|vocab_size|n_embd|d_model|head_dim"
)
_POSITIVE = re.compile(r"\w*_eps|\w*_epsilon|eps|rope_theta")
_MAY_BE_INFINITE = ("time_step_limit", "time_step_max")
"""Mamba's configurations write Infinity for a time step without a bound."""
_BY_LAYER = ("layer_types", "mlp_layer_types")
_CUT_SHORT = ("deepseek_v4",)
"""Model types whose configuration leaves out the entries beyond its layers, as transformers reads it."""


def require_sane(raw: object, *, text: str, path: Path) -> None:
    """InventoryError, which names the field, its value, its limit and its line, for a hostile config.json."""
    if not isinstance(raw, Mapping):
        return
    for number, (field, value, depth) in enumerate(fields_of(raw)):
        if number == MAX_VALUES:
            raise InventoryError(
                f"{path}: more than {MAX_VALUES} values", help="use the config.json of a model"
            )
        is_deep = depth > MAX_DEPTH
        fault = (
            f"is nested more than {MAX_DEPTH} deep" if is_deep else _fault(field[-1] if field else "", value)
        )
        if fault is None:
            continue
        name = ".".join(field[:MAX_DEPTH])
        place = f"{path}:{line_of(text, field)}" if field else str(path)
        raise InventoryError(f"{place}: `{name}` {fault}", help=_HELP)
    for field, fault in _uneven_lists(raw):
        raise InventoryError(f"{path}:{line_of(text, field)}: `{'.'.join(field)}` {fault}", help=_HELP)


def _uneven_lists(raw: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Lists with an entry for every layer that have more or fewer, and what is wrong with each."""
    todo: list[tuple[tuple[str, ...], Mapping[str, object]]] = [((), raw)]
    while todo:
        field, config = todo.pop()
        todo.extend(((*field, name), one) for name, one in config.items() if isinstance(one, Mapping))
        num_layers, may_be_longer = config.get("num_hidden_layers"), config.get("model_type") in _CUT_SHORT
        for name in _BY_LAYER:
            entries = config.get(name)
            if not isinstance(entries, list) or not isinstance(num_layers, int):
                continue
            if len(entries) < num_layers or (len(entries) > num_layers and not may_be_longer):
                fault = f"has {len(entries)} entries, and must have one for each of {num_layers} layers"
                yield (*field, name), fault


def fields_of(raw: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object, int]]:
    """Each value that is not a mapping or list, with the names of its path and its depth."""
    todo: list[tuple[tuple[str, ...], object, int]] = [((), raw, 0)]
    while todo:
        field, value, depth = todo.pop()
        if depth <= MAX_DEPTH and isinstance(value, Mapping):
            todo.extend(((*field, name), inner, depth + 1) for name, inner in tuple(value.items())[::-1])
        elif depth <= MAX_DEPTH and isinstance(value, list):
            todo.extend((field, inner, depth + 1) for inner in value[::-1])
        else:
            yield field, value, depth


def _fault(name: str, value: object) -> str | None:
    """Explain what is wrong with a field's value; None for a valid one."""
    if value is None:
        return None
    high = _most(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        is_number = high is not None or _POSITIVE.fullmatch(name)
        return f"is {_shown(value)}, but must be a number" if is_number else None
    if isinstance(value, float):
        if not math.isfinite(value):
            is_known = name in _MAY_BE_INFINITE and value > 0
            return None if is_known else f"is {value}, but must be a finite number"
        if high is not None:
            return f"is {value}, but must be an integer"
    if _POSITIVE.fullmatch(name) and value < 0:
        return f"is {_shown(value)}, but must be at least 0"
    is_count = high is not None or _POSITIVE.fullmatch(name)
    low = 1 if _AT_LEAST_ONE.fullmatch(name) else 0 if is_count else -MAX_NUMBER
    high = MAX_NUMBER if high is None else high
    if isinstance(value, int) and not low <= value <= high:
        return f"is {_shown(value)}, but must be from {low} to {high}"
    return None


@functools.lru_cache(maxsize=256)
def _most(name: str) -> int | None:
    """The largest value of a field that counts something; None for another field."""
    limits = ((_LAYERS, MAX_LAYERS), (_HEADS, MAX_HEADS), (_EXPERTS, MAX_EXPERTS), (_SIZES, MAX_SIZE))
    return next((limit for pattern, limit in limits if pattern.fullmatch(name)), None)


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        return f"about {'-' if value < 0 else ''}10^{len(str(abs(value))) - 1}"
    text = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return text if len(text) <= 40 else f"{text[:37]}..."


def line_of(text: str, field: tuple[str, ...]) -> int:
    """The line of a field: its name comes after the names of its path."""
    at = 0
    for name in field:
        found = re.compile(rf'"{re.escape(name)}"\s*:').search(text, at)
        if found is None:
            break
        at = found.end()
    return text.count("\n", 0, at) + 1


_COEFFICIENT = "aux_loss_coef"


def added_losses(config: Mapping[str, object]) -> tuple[str, ...]:
    """The fields of a config.json by which transformers adds an expert-balancing loss.

    It does so if `output_router_logits` is true, with weight `router_aux_loss_coef` or, in JetMoE,
    `aux_loss_coef`.
    """
    if config.get("output_router_logits") is not True:
        return ()
    return tuple(name for name, value in config.items() if _COEFFICIENT in name and value)


def router_loss(config: Mapping[str, object], *, fields: Sequence[str]) -> float | None:
    """The weight of the loss that these fields add; None if config.json leaves it to the class."""
    weight = next((value for name in fields if (value := config.get(name)) is not None), None)
    return float(weight) if isinstance(weight, int | float) else None


def rope_switch(config: Mapping[str, object]) -> int | None:
    """The positions beyond which LongRoPE uses other embeddings (dynamic_rope_update in transformers'
    modeling_rope_utils.py); the smallest number, if kinds of layers have their own."""
    whole = config.get("rope_parameters")
    if not isinstance(whole, Mapping):
        return None
    of_kinds = [one for one in whole.values() if isinstance(one, Mapping)] or [whole]
    return min(
        (one["original_max_position_embeddings"] for one in of_kinds if one.get("rope_type") == "longrope"),
        default=None,
    )
