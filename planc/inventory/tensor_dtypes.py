"""Which tensors of a model are not of the model's dtype, and when. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from planc.inventory.schema import Module
from planc.tensor_dtypes import built_in, floating_tensors, kept_in_float32
from planc.vocab import DType


@dataclass(frozen=True, slots=True)
class TensorDTypes:
    """By module and local name: the dtypes that the model's code sets, and what is loaded as float32."""

    own: Mapping[tuple[str, str], DType]
    in_half: tuple[tuple[str, str], ...]
    in_float16: tuple[tuple[str, str], ...]


def tensor_dtypes(model: PreTrainedModel) -> TensorDTypes:
    """Of a model on meta, whatever dtype it has: it is built a second time."""
    # No model is meant for float64, so a tensor that is not float64 there has a dtype of its own.
    wide = built_in(model, torch.float64)
    tensors = floating_tensors(wide).items()
    own = {
        _place(name): DType(str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors
        if tensor.dtype != torch.float64
    }
    settled = {place for place, dtype in own.items() if dtype is DType.FLOAT32}
    in_half = dict.fromkeys(map(_place, kept_in_float32(wide, torch.bfloat16)))
    in_float16 = dict.fromkeys(map(_place, kept_in_float32(wide, torch.float16)))
    return TensorDTypes(
        own,
        in_half=tuple(place for place in in_half if place not in settled),
        in_float16=tuple(place for place in in_float16 if place not in settled and place not in in_half),
    )


def with_dtypes(modules: Iterable[Module], dtypes: TensorDTypes) -> tuple[Module, ...]:
    """The modules, each with the dtypes of its own tensors."""
    own, in_half, in_float16 = map(_by_module, (dtypes.own, dtypes.in_half, dtypes.in_float16))
    return tuple(
        replace(
            module,
            own_dtypes=tuple((name, dtypes.own[module.fqn, name]) for name in own.get(module.fqn, ())),
            kept_in_half=tuple(in_half.get(module.fqn, ())),
            kept_in_float16=tuple(in_float16.get(module.fqn, ())),
        )
        for module in modules
    )


def _by_module(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Local names by module, in their order."""
    found: dict[str, list[str]] = {}
    for fqn, name in places:
        found.setdefault(fqn, []).append(name)
    return found


def _place(name: str) -> tuple[str, str]:
    fqn, _, local = name.rpartition(".")
    return fqn, local
