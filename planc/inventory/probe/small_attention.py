"""Attentions of a small model of the same kind, with weights and inputs. Imports torch, for the probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.head_shares import SharedKv
from planc.inventory.probe.factor_trial import LIMITS, Call, Counts, find_counts
from planc.inventory.probe.kv_trial import find_shared_kv, small_kv_heads
from planc.inventory.probe.trial_shares import named_arguments
from planc.inventory.small_config import Demands, shrink_config
from planc.modeling.decoder_inputs import same_for_decoder
from planc.modeling.head_counts import Heads
from planc.modeling.tasks import head_options

_BATCH, _LENGTH, _MAX_LENGTH = 2, 7, 32
"""Sequences and their tokens: a length that no head count or width has shows code that mistakes one for
another. No padding token is among the ids, which begin at the maximum length."""
MAX_LAYERS = 6


_Found = TypeVar("_Found")


def try_shares(
    model: PreTrainedModel, config: PreTrainedConfig, *, fqns: Sequence[str], blocks: Sequence[str]
) -> Mapping[str, Counts]:
    """Return the counts that make attentions work on a share of their heads, by fqn, if there are any."""

    def find(call: Call, heads: Heads, dtype: torch.dtype) -> Counts | None:
        shares = legal_shares(heads)
        return find_counts(call, heads=heads, shares=shares, dtype=dtype) if shares else None

    return _tried(model, config, fqns=fqns, blocks=blocks, kv_heads=None, find=find)


def try_shared_kv(
    model: PreTrainedModel, config: PreTrainedConfig, *, fqns: Sequence[str], blocks: Sequence[str]
) -> Mapping[str, SharedKv]:
    """Return what makes attentions work where several ranks compute the same key/value head, by fqn."""
    heads = heads_of(config)
    if heads is None or heads[0] <= heads[1]:
        return {}
    kv_heads = small_kv_heads(heads)
    return _tried(model, config, fqns=fqns, blocks=blocks, kv_heads=kv_heads, find=find_shared_kv)


def try_multi_query(
    model: PreTrainedModel, config: PreTrainedConfig, *, fqns: Sequence[str], blocks: Sequence[str]
) -> Mapping[str, SharedKv]:
    """Return what makes attentions work where all ranks compute their one key/value head, by fqn."""

    def find(call: Call, heads: Heads, dtype: torch.dtype) -> SharedKv | None:
        return find_shared_kv(call, (heads[0], 1), dtype)

    return _tried(model, config, fqns=fqns, blocks=blocks, kv_heads=None, find=find)


def _tried(
    model: PreTrainedModel,
    config: PreTrainedConfig,
    *,
    fqns: Sequence[str],
    blocks: Sequence[str],
    kv_heads: int | None,
    find: Callable[[Call, Heads, torch.dtype], _Found | None],
) -> Mapping[str, _Found]:
    """Try attentions, and return the results by fqn.

    Attentions of one nature behave the same: one of each is tried, in a model of their layers alone. A model
    that can't be made small shows nothing.
    """
    block = next((one for one in blocks if all(fqn.startswith(f"{one}.") for fqn in fqns)), None)
    if block is None:
        return {}
    alike: dict[object, list[str]] = {}
    for fqn in fqns:
        alike.setdefault(_nature(model.get_submodule(fqn)), []).append(fqn)
    places = {nature: _place(members[0], block) for nature, members in alike.items()}
    layers = sorted({layer for layer, _ in places.values()})
    if len(layers) > MAX_LAYERS:
        return {}
    waiting = {f"{block}.{layers.index(layer)}.{rest}": nature for nature, (layer, rest) in places.items()}
    results: dict[str, _Found] = {}
    for dtype in LIMITS:
        try:
            num_layers = len(model.get_submodule(block))
            small = small_config(config, layers=layers, num_layers=num_layers, kv_heads=kv_heads)
            tiny = small_model(small, model_class=type(model), dtype=dtype)
            calls = calls_of(tiny, tuple(waiting))
        except Exception:  # a class may raise anything for sizes or a dtype that it does not expect
            continue
        heads = heads_of(small)
        for fqn, call in calls.items():
            nature = waiting[fqn]
            if heads is None or _nature(call.attention) != nature:
                continue
            try:
                works = find(call, heads, dtype)
            except Exception:  # code may raise anything where it runs again by itself: its keys may be kept
                works = None
            if works is not None:
                del waiting[fqn]
                results |= dict.fromkeys(alike[nature], works)
    return results


def _nature(attention: nn.Module) -> tuple[object, ...]:
    """Return what decides which code runs: types, and settings that are not sizes."""
    return tuple(
        (
            name,
            type(module).__qualname__,
            *(
                (key, value)
                for key, value in vars(module).items()
                if isinstance(value, bool | str | None) and not key.startswith("_")
            ),
            *(key for key, parameter in module._parameters.items() if parameter is not None),
        )
        for name, module in attention.named_modules()
    )


def _place(fqn: str, block: str) -> tuple[int, str]:
    """The number of the layer around a module, and the module's path in it."""
    layer, _, rest = fqn.removeprefix(f"{block}.").partition(".")
    return int(layer), rest


def heads_of(config: PreTrainedConfig) -> Heads | None:
    """The heads that a config names; None where it names none."""
    num_heads = getattr(config, "num_attention_heads", None)
    if type(num_heads) is not int or num_heads < 1:
        return None
    num_kv_heads = getattr(config, "num_key_value_heads", None)
    return num_heads, num_kv_heads if type(num_kv_heads) is int and num_kv_heads > 0 else num_heads


def legal_shares(heads: Heads) -> tuple[int, ...]:
    """The smallest and the largest number of ranks that could share the heads; none if none could."""
    common = math.gcd(*heads)
    smallest = next((size for size in range(2, common + 1) if common % size == 0), None)
    return () if smallest is None else tuple(dict.fromkeys((smallest, common)))


def small_config(
    config: PreTrainedConfig, *, layers: Sequence[int], num_layers: int, kv_heads: int | None = None
) -> PreTrainedConfig:
    """The config of these layers with few, narrow heads in the same groups; raises what its class does."""
    heads = heads_of(config)
    length = max(getattr(config, "max_position_embeddings", None) or _MAX_LENGTH, _MAX_LENGTH)
    demands = Demands(
        kept=tuple(layers),
        num_layers=num_layers,
        tp=next(iter(legal_shares(heads)), 1) if heads else 1,
        cp=1,
        divides_heads=False,
        num_shards=1,
        sequence_length=length,
        short_length=_MAX_LENGTH,
        uncounted_token=_padding(config),
        kv_heads=kv_heads,
    )
    small = shrink_config(config.to_dict(), demands, aliases=type(config).attribute_map)
    found: PreTrainedConfig = type(config).from_dict(small)
    return found


def _padding(config: PreTrainedConfig) -> int | None:
    """The padding token, if the small model has it: some models give it a position."""
    token = getattr(config, "pad_token_id", None)
    return token if type(token) is int and 0 <= token < _MAX_LENGTH else None


def small_model(
    config: PreTrainedConfig, *, model_class: type[PreTrainedModel], dtype: torch.dtype
) -> PreTrainedModel:
    """A model with the model's own attention and drawn weights, on the CPU."""
    # A new model draws from torch's own generator, which belongs to the caller.
    with torch.random.fork_rng(devices=()):
        model: PreTrainedModel = model_class._from_config(
            config, dtype=dtype, attn_implementation="eager", **head_options(model_class)
        )
    same_for_decoder(model)
    model.train(False)
    _draw(model)
    return model


def calls_of(model: PreTrainedModel, fqns: Sequence[str]) -> Mapping[str, Call]:
    """Return the arguments that a forward passes to these attentions, each called once."""
    calls_by_fqn: dict[str, list[Call]] = {fqn: [] for fqn in fqns}
    ids = token_ids(model, length=_LENGTH)

    def recorder(fqn: str) -> Any:
        def record(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            calls_by_fqn[fqn].append(Call(module, named_arguments(module, arguments, keywords), _BATCH))

        return record

    handles = [
        model.get_submodule(fqn).register_forward_pre_hook(recorder(fqn), with_kwargs=True) for fqn in fqns
    ]
    try:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return {fqn: calls[0] for fqn, calls in calls_by_fqn.items() if len(calls) == 1}


def token_ids(model: PreTrainedModel, *, length: int) -> Tensor:
    """Random tokens [B, S], none of them for padding."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(_MAX_LENGTH, model.config.vocab_size // 2, (_BATCH, length), generator=generator)


def _draw(model: nn.Module) -> None:
    """Weights that make heads differ: a new model's are so small that all attend evenly."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in sorted(model.named_parameters()):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        # Norms' weights are around 1, which keeps what they scale as large as the rest.
        center = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
        scale = 0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        with torch.no_grad():
            parameter.copy_(center + scale * drawn)
