"""Direct preference optimization in one process: each answer alone, without padding, and its whole vector of
log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planc.plan.train import Preference
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.padded import PaddedDataset

PAIRS = "pairs.jsonl"
"""The pairs of the small model, in the folder of its corpus."""


def pairs_of(texts: Iterable[str]) -> list[dict[str, str]]:
    """A pair for each three texts: they need not answer anything."""
    names = ("prompt", "chosen", "rejected")
    return [dict(zip(names, three, strict=True)) for three in zip(*[iter(texts)] * 3, strict=False)]


@dataclass
class Preferences:
    """The loss of pairs, of a model whose weights are those of the reference when this is made."""

    model: Any
    dataset: Dataset
    kind: Preference
    reference: list[Tensor] = field(default_factory=list)
    """The log-probability of each answer."""

    def __post_init__(self) -> None:
        with torch.no_grad():
            self.reference = [self._of_answer(number) for number in range(self.dataset.num_sequences)]

    def loss(self, sample_ids: np.ndarray) -> Tensor:
        """The mean over the pairs of a step, whose answers are next to each other."""
        ratios = [self._of_answer(int(number)) - self.reference[int(number)] for number in sample_ids]
        margins = torch.stack([good - bad for good, bad in zip(ratios[::2], ratios[1::2], strict=True)])
        right = torch.sigmoid(self.kind.beta * margins)
        swapped = self.kind.label_smoothing
        return -((1 - swapped) * right.log() + swapped * (1 - right).log()).mean()

    def _of_answer(self, number: int) -> Tensor:
        dataset = self.dataset
        assert isinstance(dataset, PaddedDataset) and dataset.is_target is not None
        start, stop = dataset.starts[number : number + 2]
        own = slice(int(start), int(stop))
        tokens = torch.from_numpy(dataset.tokens[own].astype(np.int64))
        is_answer = torch.from_numpy(np.asarray(dataset.is_target[own])[1:])
        logits = self.model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        logits = logits if logits.dtype is torch.float64 else logits.float()
        of_tokens: Tensor = logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]
        return of_tokens.double()[is_answer].sum()
