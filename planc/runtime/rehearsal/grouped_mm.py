"""The shape of a grouped matrix product, in every dtype that the kernels support.

PyTorch's own shape function supports bfloat16 only, and rejects the float32 that its kernels support.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from planc.runtime.rehearsal.private import FakeTensorMode, fake_implementations

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""A run in float64 multiplies the rows of each expert separately, with results of the same shapes."""


def teach_grouped_mm() -> None:
    """Let fake tensors of every dtype go through `torch._grouped_mm`. Safe to call more than once."""
    fake_implementations[torch.ops.aten._grouped_mm.default] = _grouped_mm


def _grouped_mm(
    fake_mode: FakeTensorMode,
    func: Any,
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """An empty result. RuntimeError for dtypes and contracted dimensions that a run rejects."""
    if mat_a.dtype not in _DTYPES:
        raise RuntimeError(f"expected mat_a to be float64, float32, bfloat16 or float16, got {mat_a.dtype}")
    if mat_a.shape[-1] != mat_b.shape[-2]:
        raise RuntimeError(
            f"contraction dimension of mat_a {tuple(mat_a.shape)} and mat_b {tuple(mat_b.shape)} must match"
        )
    with fake_mode:
        return torch.empty(
            _shape(mat_a, mat_b=mat_b, offs=offs), dtype=out_dtype or mat_a.dtype, device=mat_a.device
        )


def _shape(mat_a: Tensor, *, mat_b: Tensor, offs: Tensor | None) -> tuple[int, ...]:
    """Groups are rows [T, K] x [E, K, N], the contraction [M, T] x [T, N], columns [E, M, K] x [K, T], or all
    apart [E, M, K] x [E, K, N]."""
    match mat_a.dim(), mat_b.dim():
        case 2, 2:
            assert offs is not None, "the kernels need to know where groups end"
            return offs.shape[0], mat_a.shape[0], mat_b.shape[1]
        case 2, 3:
            return mat_a.shape[0], mat_b.shape[2]
        case 3, 2:
            return mat_a.shape[1], mat_b.shape[1]
        case _:
            return mat_a.shape[0], mat_a.shape[1], mat_b.shape[2]
