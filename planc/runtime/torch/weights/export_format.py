"""The format of an export, wherever its weights come from: entries, bytes, and config changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from planc.graph.ops import BuildClassifier, BuildModel
from planc.modeling.rope import scale_rope
from planc.modeling.tasks import ONE_CLASS
from planc.modeling.tensor_dtypes import loaded_dtypes
from planc.runtime.checkpoint_format.records import ElementType
from planc.runtime.checkpoint_format.shards import Entry
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.torch.checkpoint.tensors import element_type
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.weights.views import View
from planc.vocab import CLASSIFIERS, DType, Task

MAX_SHARD_BYTES = 5 * 10**9
"""The maximum size of a safetensors file, unless a single tensor is larger."""


def entries_of(views: Mapping[str, View], *, dtype_of: Callable[[str], torch.dtype]) -> list[Entry]:
    """The tensors of an export; `dtype_of` gives the dtype in which a tensor of the model is written."""
    return [
        Entry(key, cast(ElementType, element_type(common_dtype(view, dtype_of=dtype_of))), view.shape)
        for key, view in views.items()
    ]


def common_dtype(view: View, *, dtype_of: Callable[[str], torch.dtype]) -> torch.dtype:
    """The common dtype of the tensors that a view is made of."""
    dtypes = {dtype_of(name) for name in view.sources}
    assert len(dtypes) == 1, "transformers joins tensors of one dtype only"
    return dtypes.pop()


def written_dtypes(model: PreTrainedModel, dtype: DType) -> dict[str, torch.dtype]:
    """The dtype of every parameter in an export of this dtype: what `from_pretrained` would give it."""
    loaded = loaded_dtypes(model, TORCH_DTYPES[dtype])
    return {name: loaded[name] for name, _ in model.named_parameters()}


def refuse_overflow(name: str, values: Tensor) -> None:
    """RunError if a cast has left the range of its dtype."""
    if not values.isfinite().all():
        raise RunError(
            f"{name} exceeds the range of {element_type(values.dtype)}: a weight would become infinite",
            code=ExitCode.NUMERICS,
            help="export as bfloat16, which has the range of float32",
        )


def as_bytes(tensor: Tensor) -> memoryview:
    """A tensor's elements in C order, as in memory."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def config_changes(
    folder: Path,
    *,
    architecture: str,
    dtype: str,
    rope: Iterable[tuple[str, object]],
    head: BuildModel | None = None,
    names: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The entries of an export's config.json that differ from those of the model in a directory.

    `rope` is what the plan states of rotary embeddings, `head` is how the plan builds the model, and `names`
    are those of a classifier's classes.
    """
    if isinstance(head, BuildClassifier):
        names = names or tuple(f"LABEL_{number}" for number in range(head.labels))
    return {
        **_scaled(folder, tuple(rope)),
        **(_classes(names, architecture) if names else {}),
        "architectures": [architecture],
        # transformers 4 reads the second.
        "dtype": dtype,
        "torch_dtype": dtype,
        "transformers_version": transformers.__version__,
    }


def _classes(names: tuple[str, ...], architecture: str) -> dict[str, Any]:
    numbers = {name: number for number, name in enumerate(names)}
    by_number = {str(number): name for name, number in numbers.items()}
    known = {"id2label": by_number, "label2id": numbers}
    is_of_texts = architecture.endswith(CLASSIFIERS[Task.SEQUENCE_CLASSIFICATION])
    return {**known, "problem_type": ONE_CLASS} if is_of_texts else known


def _scaled(folder: Path, rope: tuple[tuple[str, object], ...]) -> dict[str, Any]:
    if not rope:
        return {}
    changes = dict(scale_rope(AutoConfig.from_pretrained(folder, local_files_only=True), rope))
    parameters = changes["rope_parameters"]
    # transformers 4 reads these.
    return {**changes, "rope_scaling": parameters, "rope_theta": parameters["rope_theta"]}
