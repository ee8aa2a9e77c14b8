"""The tensors of a model that do not have the model's dtype, and when. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from planc.inventory.schema import Module
from planc.modeling.tensor_dtypes import built_in, floating_tensors, kept_in_float32
from planc.record import record
from planc.vocab import DType

Place = tuple[str, str]
"""A module's name, and a tensor's local name."""


@record
class TensorDTypes:
    """The dtypes that the model's code fixes for tensors, and the tensors that are loaded as float32."""

    own: Mapping[Place, DType]
    widened: tuple[Place, ...]
    in_half: tuple[Place, ...]
    in_float16: tuple[Place, ...]


def tensor_dtypes(model: PreTrainedModel) -> TensorDTypes:
    """The dtypes of a model on meta, whatever its own dtype: the model is built twice more."""
    # No code requests float16: a tensor that is not float16 here has a fixed dtype in other models too.
    narrow, wide = built_in(model, torch.float16), floating_tensors(built_in(model, torch.float64))
    others = {
        name: tensor.dtype
        for name, tensor in floating_tensors(narrow).items()
        if tensor.dtype != torch.float16
    }
    own = {_place(name): DType(str(dtype).removeprefix("torch.")) for name, dtype in others.items()}
    settled = {place for place, dtype in own.items() if dtype is DType.FLOAT32}
    in_half = dict.fromkeys(map(_place, kept_in_float32(narrow, torch.bfloat16)))
    in_float16 = dict.fromkeys(map(_place, kept_in_float32(narrow, torch.float16)))
    return TensorDTypes(
        own,
        widened=tuple(_place(name) for name in others if wide[name].dtype == torch.float64),
        in_half=tuple(place for place in in_half if place not in settled),
        in_float16=tuple(place for place in in_float16 if place not in settled and place not in in_half),
    )


def with_dtypes(modules: Iterable[Module], dtypes: TensorDTypes) -> tuple[Module, ...]:
    """The modules, each with the dtypes of its own tensors."""
    own, widened = _by_module(dtypes.own), _by_module(dtypes.widened)
    in_half, in_float16 = _by_module(dtypes.in_half), _by_module(dtypes.in_float16)
    return tuple(
        replace(
            module,
            own_dtypes=tuple((name, dtypes.own[module.fqn, name]) for name in own.get(module.fqn, ())),
            widened=tuple(widened.get(module.fqn, ())),
            kept_in_half=tuple(in_half.get(module.fqn, ())),
            kept_in_float16=tuple(in_float16.get(module.fqn, ())),
        )
        for module in modules
    )


def _by_module(places: Iterable[Place]) -> dict[str, list[str]]:
    """Local names by module, in their order."""
    found: dict[str, list[str]] = {}
    for fqn, name in places:
        found.setdefault(fqn, []).append(name)
    return found


def _place(name: str) -> Place:
    fqn, _, local = name.rpartition(".")
    return fqn, local
