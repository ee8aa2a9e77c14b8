"""The loss of inputs with targets, each alone and without padding: a second implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.padded import MappedDataset


def loss_of_targets(
    model: nn.Module, dataset: Dataset, ids: np.ndarray, values_of: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """The mean over the tokens of all targets. The model itself makes what its decoder is given of them."""
    assert isinstance(dataset, MappedDataset)
    values = []
    for number in ids:
        bounds = (int(place) for place in dataset.starts[2 * number : 2 * number + 3])
        start, middle, stop = bounds
        tokens = torch.from_numpy(dataset.tokens[start:middle].astype(np.int64))[None]
        target = torch.from_numpy(dataset.tokens[middle:stop].astype(np.int64))[None]
        logits = model(input_ids=tokens, labels=target, use_cache=False).logits
        logits = logits if logits.dtype is torch.float64 else logits.float()
        values.append(values_of(logits, target, target))
    return torch.cat(values).mean()
