"""Asks PyTorch, before step 1, for the kernels that the table names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from planc.devices.attention_kernels import AttentionCall, Kernel, head_dim_multiple, kernel_of
from planc.runtime.torch import private

_FLASH = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
_LENGTH = 32


def missing_kernels(calls: Sequence[AttentionCall], *, device: torch.device) -> Iterator[tuple[str, str]]:
    """Each call whose kernel PyTorch doesn't take on this device, in words, and its reasons.

    Flash attention is PyTorch's choice among its kernels. planc calls the memory-efficient one by name, and
    computes `math` itself.
    """
    for call in calls:
        kernel = kernel_of(call, device=device.type)
        if kernel is Kernel.FLASH and not call.has_mask:
            query, key, value = _tensors(call, kernel, device=device)
            chosen = SDPBackend(private.fused_sdp_choice(query, key, value, None, 0.0, True, enable_gqa=True))
            if chosen not in _FLASH:
                taken = chosen.name.lower().removesuffix("_attention")
                yield f"takes {taken} for {call}, not {kernel}", reasons(query, key, value, device=device)
        elif kernel is Kernel.EFFICIENT and device.type == "cuda":
            query, key, value = _tensors(call, kernel, device=device)
            parameters = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, True, False)
            if not torch.backends.cuda.can_use_efficient_attention(parameters):
                yield f"has no {kernel} kernel for {call}", reasons(query, key, value, device=device)


def _tensors(call: AttentionCall, kernel: Kernel, *, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as planc passes them: padded, with grouped heads only where the kernel groups."""
    multiple = head_dim_multiple(kernel, device=device.type, dtype=call.dtype)
    value_dim = call.head_dim if kernel is Kernel.FLASH else call.value_dim
    kv_heads = 1 if kernel is Kernel.FLASH else 2
    dtype = getattr(torch, call.dtype)

    def zeros(heads: int, dim: int) -> Tensor:
        shape = (1, heads, _LENGTH, dim + -dim % multiple)
        return torch.zeros(shape, dtype=dtype, device=device, requires_grad=True)

    return zeros(2, call.head_dim), zeros(kv_heads, call.head_dim), zeros(kv_heads, value_dim)


def reasons(query: Tensor, key: Tensor, value: Tensor, *, device: torch.device) -> str:
    """Collect the warnings by which PyTorch explains its choice; CUDA alone gives any."""
    if device.type != "cuda":
        return ""
    grouped = query.shape[1] != key.shape[1]
    parameters = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, True, grouped)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.backends.cuda.can_use_flash_attention(parameters, True)
        torch.backends.cuda.can_use_efficient_attention(parameters, True)
    return "; ".join(dict.fromkeys(str(warning.message).split(" (Triggered")[0] for warning in said))
