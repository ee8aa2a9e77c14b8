"""The loss of texts with classes, each alone and without padding: a second implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.padding import LabeledDataset


def loss_of_classes(
    model: nn.Module, dataset: Dataset, ids: np.ndarray, values_of: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """The mean over texts."""
    assert isinstance(dataset, LabeledDataset)
    logits, labels = [], []
    for number in ids:
        start, stop = dataset.starts[number : number + 2]
        tokens = torch.from_numpy(dataset.tokens[start:stop].astype(np.int64))
        output = model(input_ids=tokens[None]).logits
        logits.append(output if output.dtype is torch.float64 else output.float())
        labels.append(int(dataset.classes[number : number + 1][0]))
    targets = torch.tensor(labels)[None]
    return values_of(torch.stack(logits, dim=1), targets, targets).mean()
