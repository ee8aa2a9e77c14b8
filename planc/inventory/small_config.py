"""A model's config.json with small sizes: the same code runs, and every ratio that it tests is kept.

Pure data; the effect of sizes is only known once the class is built: by a probe of its attention, and by
`planc verify`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planc.record import record

Config = Mapping[str, Any]
"""A config.json with everything that its class fills in."""

HEAD_DIM, SMALL_HEAD_DIM = 16, 8
_MANY_HEADS = 16
"""The number of query heads from which each is smaller still."""
_MAX_GROUP = 8
_NUM_EXPERTS = 4
_MIN_HIDDEN = 64
_EVEN_ROWS, _HALF_EVEN_ROWS, _UNEVEN_ROWS = 264, 262, 261
"""Vocabularies for bytes and an end of document, with rows divisible by 8, by 2 only, or by no mesh dim."""
PADDING_ID = 258
START_ID = 259
IMAGE_ID = 260
"""Tokens that bytes never have."""

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_sequence_length")
_ROPE = ("rope_scaling", "rope_parameters")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_LAYER_INDICES = ("mlp_only_layers", "full_attn_idxs", "global_attn_layers")
_LAYER_BOUNDS = ("first_k_dense_replace", "max_window_layers")
"""Fields that count the leading layers of one kind."""


@record
class Demands:
    """A plan's requirements for a model's sizes. `kept` are the indices of the layers that stay."""

    kept: tuple[int, ...]
    num_layers: int
    tp: int
    cp: int
    divides_heads: bool
    """Whether heads are sharded over cp too, as in ulysses."""
    num_shards: int
    """The number of ranks over which a tensor may be sharded."""
    sequence_length: int
    short_length: int
    first_position: int = 0
    """The number of positions that no token has, before the first that one has."""
    uncounted_token: int | None = None
    """Padding by whose id the model finds its first position."""
    kv_heads: int | None = None
    """The number of key/value heads; None for one that ranks share as they share the large model's."""


def shrink_config(config: Config, demands: Demands, *, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The config of the kept layers with small sizes.

    `aliases` are the class's own names of fields by their usual ones, as transformers' `attribute_map`.
    """

    def own(name: str) -> str:
        return aliases.get(name, name)

    def get(name: str) -> Any:
        return config.get(own(name))

    sizes = {**_widths(get, demands), **_experts(get), **_latent(get)}
    small = dict(config) | {own(name): value for name, value in sizes.items() if get(name) is not None}
    small |= {own("num_hidden_layers"): len(demands.kept)}
    small |= _of_decoder(small, config, num_layers=len(demands.kept))
    small |= _layers(config, demands)
    small |= _lengths(config, demands)
    # Two runs with random draws can't be compared.
    small |= dict.fromkeys(random_fields(config), 0.0)
    small |= {"bos_token_id": None, "eos_token_id": None}
    if config.get("pad_token_id") is not None:
        # Where positions begin behind padding's own, its id is one of them, and the graph has the same.
        is_position = demands.uncounted_token is not None
        small["pad_token_id"] = demands.uncounted_token if is_position else PADDING_ID
    rotary = small.get("qk_rope_head_dim") or small.get("head_dim") or _head_dim(small, own)
    return {
        name: _rope(value, demands, rotary=rotary) if name in _ROPE else value
        for name, value in small.items()
    }


def _of_decoder(small: Config, config: Config, *, num_layers: int) -> dict[str, Any]:
    """The sizes of a decoder that has fields of its own: those of its encoder."""
    names = ((name, name.replace("decoder", "encoder", 1)) for name in config if name.startswith("decoder_"))
    sizes = {decoder: small[encoder] for decoder, encoder in names if encoder in config}
    if "num_decoder_layers" in config:
        sizes["num_decoder_layers"] = num_layers
    if config.get("decoder_start_token_id") is not None:
        is_padding = config["decoder_start_token_id"] == config.get("pad_token_id")
        sizes["decoder_start_token_id"] = PADDING_ID if is_padding else START_ID
    return sizes


def _head_dim(config: Config, own: Callable[[str], str]) -> int:
    heads = config.get(own("num_attention_heads")) or 1
    return int(config.get(own("hidden_size"), heads)) // int(heads)


def _widths(get: Callable[[str], Any], demands: Demands) -> dict[str, int]:
    """Heads in their original groups, and widths that fit them."""
    sizes = {"vocab_size": _rows(get("vocab_size"), demands)}
    old_hidden, old_heads = get("hidden_size"), get("num_attention_heads")
    if not old_heads:
        return sizes | {"hidden_size": _MIN_HIDDEN, "intermediate_size": 2 * _MIN_HIDDEN}
    heads, kv_heads = heads_of(old_heads, get("num_key_value_heads") or old_heads, demands)
    head_dim = HEAD_DIM if heads < _MANY_HEADS else SMALL_HEAD_DIM
    old_head_dim = get("head_dim") or old_hidden // old_heads
    is_square = old_head_dim * old_heads == old_hidden or get("head_dim") is None
    hidden = heads * head_dim if is_square else max(_MIN_HIDDEN, heads * head_dim // 2)
    scalar = get("query_pre_attn_scalar")
    return sizes | {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        # Not twice the width: a plan that mistakes one for the other should not fit by luck.
        "intermediate_size": hidden + hidden // 2,
        "ffn_dim": hidden + hidden // 2,
        "n_inner": hidden + hidden // 2,
        "word_embed_proj_dim": hidden if get("word_embed_proj_dim") == old_hidden else hidden // 2,
        "rotary_dim": 2 * max(1, (get("rotary_dim") or head_dim) * head_dim // (2 * old_head_dim)),
        "query_pre_attn_scalar": max(1, round((scalar or 1) * head_dim / old_head_dim)),
    }


def _rows(vocab_size: int, demands: Demands) -> int:
    """A small vocabulary, divisible by the number of ranks if the large one is."""
    if vocab_size % demands.num_shards == 0:
        return _EVEN_ROWS
    return _HALF_EVEN_ROWS if demands.tp > 1 and vocab_size % demands.tp == 0 else _UNEVEN_ROWS


def heads_of(num_heads: int, num_kv_heads: int, demands: Demands) -> tuple[int, int]:
    """Query and key-value heads: as many queries per group as before, sharded in the same way.

    A mesh dim of 8 becomes one of 2, so heads that are divisible by 8 become divisible by 2. If there are
    fewer key-value heads than ranks that share them, this stays so.
    """
    groups = min(num_heads // num_kv_heads, _MAX_GROUP)
    if demands.kv_heads is not None:
        return groups * demands.kv_heads, demands.kv_heads
    tp, cp = min(demands.tp, 2), min(demands.cp, 2) if demands.divides_heads else 1
    if num_kv_heads < demands.tp and demands.tp % num_kv_heads == 0:
        kv_heads = 1
    elif num_kv_heads % demands.tp:
        kv_heads = min(num_kv_heads, 4)
    else:
        on_rank = num_kv_heads // demands.tp
        is_shared = demands.divides_heads and on_rank % demands.cp
        kv_heads = tp * (1 if is_shared else min(on_rank, 2))
    while groups * kv_heads % (tp * cp) and num_heads % (demands.tp * demands.cp) == 0:
        groups += 1
    return groups * kv_heads, kv_heads


def _experts(get: Callable[[str], Any]) -> dict[str, int]:
    """Few experts, of which fewer are chosen; groups of experts stay groups."""
    num_experts = next((get(name) for name in _EXPERTS if get(name)), 0)
    if not num_experts:
        return {}
    num_groups = min(get("n_group") or 1, 2)
    return {
        **{name: min(get(name) or 0, _NUM_EXPERTS) for name in _EXPERTS},
        "num_experts_per_tok": min(get("num_experts_per_tok") or 1, _NUM_EXPERTS // 2),
        "n_group": num_groups,
        "topk_group": min(get("topk_group") or 1, num_groups),
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
    }


def _latent(get: Callable[[str], Any]) -> dict[str, int]:
    """Sizes of latent attention; `head_dim` is then that of the rotated part."""
    if get("kv_lora_rank") is None:
        return {}
    rope = HEAD_DIM // 2
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": HEAD_DIM, "qk_rope_head_dim": rope}
    is_narrow = get("v_head_dim") != get("qk_nope_head_dim")
    return sizes | {
        "v_head_dim": HEAD_DIM // 2 if is_narrow else HEAD_DIM,
        "head_dim": rope,
        "qk_head_dim": HEAD_DIM + rope,
    }


def _layers(config: Config, demands: Demands) -> dict[str, Any]:
    """A config's values for each layer, for the kept layers only."""
    kept = demands.kept
    places = {old: new for new, old in enumerate(kept)}
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name in _LAYER_INDICES and isinstance(value, Sequence):
            values[name] = [places[index] for index in value if index in places]
        elif name in _LAYER_BOUNDS and isinstance(value, int):
            values[name] = sum(index < value for index in kept)
        elif isinstance(value, list) and len(value) == demands.num_layers:
            values[name] = [value[index] for index in kept]
    sparse_step = config.get("decoder_sparse_step")
    if isinstance(sparse_step, int) and sparse_step > 1:
        dense = config.get("mlp_only_layers") or ()
        is_dense = [index in dense or bool((index + 1) % sparse_step) for index in kept]
        values |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [new for new, is_one in enumerate(is_dense) if is_one],
        }
    return values


def _lengths(config: Config, demands: Demands) -> dict[str, int]:
    """Windows and positions in proportion to the sequence."""
    lengths = {}
    for name, value in config.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if name in _WINDOWS:
            lengths[name] = _window(value, demands)
        elif name in _POSITIONS:
            lengths[name] = max(demands.first_position + demands.short_length, _scaled(value, demands))
        elif name == "original_max_position_embeddings":
            lengths[name] = _scaled(value, demands)
    return lengths


def _window(window: int, demands: Demands) -> int:
    """A window that still masks something if the large one does."""
    scaled = max(2, _scaled(window, demands))
    return min(scaled, demands.short_length - 1) if window < demands.sequence_length else scaled


def _scaled(length: int, demands: Demands) -> int:
    return math.ceil(length * demands.short_length / demands.sequence_length)


def _rope(value: Any, demands: Demands, *, rotary: int) -> Any:
    """Rotary parameters, also per kind of layer: lengths in proportion, as many factors as pairs."""
    if not isinstance(value, Mapping):
        return value
    share = value.get("partial_rotary_factor") or 1.0
    small: dict[str, Any] = {}
    for name, item in value.items():
        if name == "original_max_position_embeddings":
            small[name] = _scaled(item, demands)
        elif name in ("short_factor", "long_factor"):
            small[name] = [item[pair % len(item)] for pair in range(int(rotary * share) // 2)]
        elif name == "mrope_section":
            small[name] = _sections(item, num_pairs=int(rotary * share) // 2)
        else:
            small[name] = _rope(item, demands, rotary=rotary)
    return small


def _sections(sections: Sequence[int], *, num_pairs: int) -> list[int]:
    """The pairs of a head that time, height and width rotate, in proportion."""
    small = [section * num_pairs // sum(sections) for section in sections]
    small[0] += num_pairs - sum(small)
    return small


_PARTS = ("drop", "jitter")
"""Parts of the names of probabilities in transformers: `resid_pdrop`, `layerdrop`, `router_jitter_noise`."""


def random_fields(config: Mapping[str, object]) -> tuple[str, ...]:
    """The fields that cause dropout, layer drop or jitter, in the order of the file."""
    return tuple(name for name, value in config.items() if _is_probability(value) and _is_random(name))


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


def _is_random(name: str) -> bool:
    return any(part in name for part in _PARTS)
