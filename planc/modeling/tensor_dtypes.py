"""The dtypes of a model's tensors in transformers: not all have the model's. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation

from planc.modeling.tasks import head_options


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, new tensors have this dtype, as while transformers builds a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def floating_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a floating-point dtype by name, tied ones once."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def kept_in_float32(model: PreTrainedModel, dtype: torch.dtype) -> tuple[str, ...]:
    """The tensors that `from_pretrained` loads as float32 into a model of this dtype, in the model's order.

    Of transformers' two lists, `_keep_in_fp32_modules` applies to float16 only, and
    `_keep_in_fp32_modules_strict` to bfloat16 too. `from_config` uses neither.
    """
    kept = model._get_dtype_plan(dtype)
    if not kept:
        return ()
    pattern, _, _ = build_glob_alternation(list(kept))
    # Non-persistent buffers are not in any file, so nothing loads them.
    stored = model.state_dict()
    return tuple(name for name in floating_tensors(model) if name in stored and pattern.search(name))


def built_in(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model as `from_config` builds it in this dtype, on meta."""
    with torch.device("meta"):
        other: PreTrainedModel = type(model)._from_config(
            deepcopy(model.config),
            dtype=dtype,
            attn_implementation="eager",
            **head_options(type(model)),
        )
    return other


def loaded_dtypes(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes that `from_pretrained` gives parameters and floating-point buffers in a model of `dtype`."""
    other = built_in(model, dtype)
    built = {name: tensor.dtype for name, tensor in floating_tensors(other).items()}
    return built | dict.fromkeys(kept_in_float32(other, dtype), torch.float32)


def set_dtypes(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Cast a model's tensors on meta, by name; tied parameters stay tied."""
    cast: dict[int, nn.Parameter] = {}
    wanted = {id(tensor): dtypes.get(name, tensor.dtype) for name, tensor in floating_tensors(model).items()}
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) in wanted and buffer.dtype != wanted[id(buffer)]:
                setattr(module, name, buffer.to(wanted[id(buffer)]))
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in wanted and parameter.dtype != wanted[id(parameter)]:
                new = nn.Parameter(parameter.detach().to(wanted[id(parameter)]), parameter.requires_grad)
                setattr(module, name, cast.setdefault(id(parameter), new))
