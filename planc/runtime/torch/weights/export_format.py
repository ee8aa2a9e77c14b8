"""What an export looks like, wherever its weights come from: entries, bytes, and what its config says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from planc.modeling.tensor_dtypes import loaded_dtypes
from planc.runtime.checkpoint_format.manifest import ElementType
from planc.runtime.checkpoint_format.shards import Entry
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.torch.checkpoint.tensors import element_type
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES
from planc.runtime.torch.weights.views import View
from planc.vocab import DType

MAX_SHARD_BYTES = 5 * 10**9
"""Of one safetensors file, unless a single tensor is larger."""


def entries_of(views: Mapping[str, View], *, dtype_of: Callable[[str], torch.dtype]) -> list[Entry]:
    """The tensors of an export; `dtype_of` tells the dtype in which one of a model's tensors is written."""
    return [
        Entry(key, cast(ElementType, element_type(common_dtype(view, dtype_of=dtype_of))), view.shape)
        for key, view in views.items()
    ]


def common_dtype(view: View, *, dtype_of: Callable[[str], torch.dtype]) -> torch.dtype:
    """The dtype of everything that a view is made of."""
    dtypes = {dtype_of(name) for name in view.sources}
    assert len(dtypes) == 1, "transformers joins tensors of one dtype only"
    return dtypes.pop()


def written_dtypes(model: PreTrainedModel, dtype: DType) -> dict[str, torch.dtype]:
    """The dtype of every parameter in an export of this dtype: what `from_pretrained` would give it."""
    loaded = loaded_dtypes(model, TORCH_DTYPES[dtype])
    return {name: loaded[name] for name, _ in model.named_parameters()}


def refuse_overflow(name: str, values: Tensor) -> None:
    """RunError where a cast has left the range of its dtype."""
    if not values.isfinite().all():
        raise RunError(
            f"{name} does not fit into {element_type(values.dtype)}: a weight of it would be infinite",
            code=ExitCode.NUMERICS,
            help="export as bfloat16, which reaches as far as float32",
        )


def as_bytes(tensor: Tensor) -> memoryview:
    """A tensor's elements in C order, as they lie in memory."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def config_changes(*, architecture: str, dtype: str) -> dict[str, Any]:
    """What an export's config.json says otherwise than the model's own."""
    return {
        "architectures": [architecture],
        # transformers 4 reads the second.
        "dtype": dtype,
        "torch_dtype": dtype,
        "transformers_version": transformers.__version__,
    }
