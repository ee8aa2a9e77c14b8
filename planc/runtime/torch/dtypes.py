"""planc's element types as PyTorch's."""

from __future__ import annotations

import torch

from planc.vocab import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.FLOAT64: torch.float64,
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}
