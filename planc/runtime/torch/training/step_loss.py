"""A rank's share of a step's loss, and of the loss and labels of each source of a mixture."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from planc.graph.sources import mixture_labels, reads_classes, reads_pairs, training_data
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch


@dataclass(slots=True)
class SourceSums:
    """This rank's sums of a step, over its own tokens: the losses of each source, and how many they are."""

    sums: Tensor
    """[sources, 2], float64, on the device."""
    _waiting: list[Tensor] = field(default_factory=list)
    """Losses [T] of the parts of a micro-batch."""

    def keep(self, losses: Tensor) -> None:
        """Keep the losses of the next tokens of a micro-batch, 0 where there is no label."""
        self._waiting.append(losses.detach())

    def add(self, batch: LocalBatch) -> None:
        """Add the micro-batch whose losses are kept."""
        assert batch.sources is not None
        # Of each token, or of each sequence.
        losses = torch.cat(self._waiting).view(len(batch.labels), -1)
        self._waiting.clear()
        is_label = batch.labels != IGNORED_LABEL
        of_rows = torch.stack([one.sum(1, dtype=torch.float64) for one in (losses, is_label)], dim=1)
        numbers = torch.arange(len(self.sums), device=of_rows.device)
        is_own = (batch.sources == numbers[:, None]).unsqueeze(2)
        # A product with 0 would spread NaN to every source.
        self.sums += torch.where(is_own, of_rows, 0.0).sum(1)


@dataclass(slots=True)
class PairSums:
    """This rank's share of the means over the pairs of a step or of an evaluation."""

    label: str
    """The evaluation; empty for a step."""
    num_pairs: int
    """The pairs of all ranks."""
    means: Tensor
    """[2], float64, on the device: of the margins of rewards, and of which pairs are in the right order."""
    answers: Tensor | None = None
    """[sequences]: in the pass of a reference, the log-probabilities so far."""

    @staticmethod
    def begin(label: str, num_pairs: int, *, device: torch.device) -> PairSums:
        """Both means of pairs that are yet to come."""
        return PairSums(label, num_pairs, torch.zeros(2, dtype=torch.float64, device=device))


NAMES_OF_MEANS = {1: ("accuracy",), 2: ("reward_margin", "reward_accuracy")}
"""The names of what a line has next to the loss, by their number: of a text's class, or of pairs."""


def no_accuracy(run: Run) -> Tensor:
    """The accuracy of texts that are yet to come."""
    return torch.zeros(1, dtype=torch.float64, device=run.device)


@dataclass(slots=True)
class StepLoss:
    """This rank's share of the step's loss, and that of each micro-batch so far."""

    total: Tensor
    by_micro_step: list[Tensor] = field(default_factory=list)
    by_source: SourceSums | None = None
    """None without a mixture, and in an evaluation."""
    pairs: PairSums | None = None
    """None unless the loss is of pairs."""
    accuracy: Tensor | None = None
    """[1], float64: this rank's share of the texts, or words, whose class is right; None without classes."""

    @property
    def means(self) -> Tensor | None:
        """This rank's share of what a line has next to the loss, in the order of its names."""
        return self.pairs.means if self.pairs is not None else self.accuracy

    def count_right(self, logits: Tensor, labels: Tensor, *, num_labels: Tensor) -> None:
        """Add the texts, or words, whose class of `labels` [N] has their largest logit, of [N, classes]."""
        if self.accuracy is not None:
            # No logit is that of a label which is left out.
            is_right = logits.detach().argmax(-1) == labels
            self.accuracy += is_right.sum(dtype=torch.float64) / num_labels.clamp(min=1)

    @staticmethod
    def begin(run: Run) -> StepLoss:
        """The loss of a step that begins."""
        num_sources = len(mixture_labels(run.graph))
        sums = torch.zeros((num_sources, 2), dtype=torch.float64, device=run.device)
        total = torch.zeros((), dtype=torch.float64, device=run.device)
        pairs = None
        if reads_pairs(run.graph):
            pairs = PairSums.begin("", training_data(run.graph).global_batch // 2, device=run.device)
        accuracy = no_accuracy(run) if reads_classes(run.graph) else None
        by_source = SourceSums(sums) if num_sources else None
        return StepLoss(total, by_source=by_source, pairs=pairs, accuracy=accuracy)

    def add(self, loss: Tensor, batch: LocalBatch) -> None:
        """Add a micro-batch's."""
        self.total += loss
        self.by_micro_step.append(loss)
        if self.by_source is not None:
            self.by_source.add(batch)
