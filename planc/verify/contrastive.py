"""The contrastive loss of each text alone and without padding: a second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from planc.plan.train import Contrastive
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.padded import PaddedDataset
from planc.vocab import Pooling

SMALL_GROUP = 2
"""The pairs of a group of the small run."""
LOWEST_TEMPERATURE = 2.0
LOWEST_EPS_OF_VECTORS = 1e-4
"""Below them, AdamW would turn rounding errors into updates: vectors of a small model are nearly parallel."""


def contrastive_loss(
    model: Any, dataset: Dataset, ids: np.ndarray, kind: Contrastive, pooling: Pooling
) -> Tensor:
    """The mean over the queries of a step, whose texts are a query and its positive in turn."""
    vectors = torch.stack([_vector(model, dataset, int(number), pooling) for number in ids])
    losses = []
    for group in torch.split(vectors, 2 * kind.group):
        for own, query in enumerate(group[::2]):
            scores = torch.stack([torch.dot(query, other) for other in group[1::2]]) / kind.temperature
            losses.append(-scores.log_softmax(0)[own])
    return torch.stack(losses).mean()


def _vector(model: Any, dataset: Dataset, number: int, pooling: Pooling) -> Tensor:
    assert isinstance(dataset, PaddedDataset)
    start, stop = dataset.starts[number : number + 2]
    tokens = torch.from_numpy(dataset.tokens[start:stop].astype(np.int64))
    states = model(input_ids=tokens[None]).last_hidden_state[0]
    states = states if states.dtype is torch.float64 else states.float()
    means = {Pooling.MEAN: states.mean(0), Pooling.CLS: states[0], Pooling.LAST: states[-1]}
    vector: Tensor = means[pooling] / means[pooling].norm()
    return vector
