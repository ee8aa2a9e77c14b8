"""The loss of texts with classes, each alone and without padding: a second implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.padded import LabeledDataset, WordsDataset


def loss_of_classes(
    model: nn.Module, dataset: Dataset, ids: np.ndarray, values_of: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """The mean over texts, or over their words."""
    assert isinstance(dataset, LabeledDataset)
    by_word, logits, labels = isinstance(dataset, WordsDataset), [], []
    for number in ids:
        start, stop = dataset.starts[number : number + 2]
        tokens = torch.from_numpy(dataset.tokens[start:stop].astype(np.int64))
        types = dataset.token_types(int(number))
        given = {} if types is None else {"token_type_ids": torch.from_numpy(types)[None, : len(tokens)]}
        output = model(input_ids=tokens[None], **given).logits
        output = output.reshape(1, -1, output.shape[-1])
        known = dataset.classes[start:stop] if by_word else dataset.classes[number : number + 1]
        classes = torch.from_numpy(known.astype(np.int64))
        logits.append((output if output.dtype is torch.float64 else output.float())[:, classes >= 0])
        labels.append(classes[classes >= 0])
    targets = torch.cat(labels)[None]
    return values_of(torch.cat(logits, dim=1), targets, targets).mean()
