"""The loss and the labels of each source of a mixture, summed with the step's loss and read with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planc.graph.sources import mixture_labels
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.observer import SourceMetrics
from planc.runtime.torch.session import LocalBatch, Session


@dataclass(slots=True)
class SourceSums:
    """This rank's sums of a step, over its own tokens: the losses of each source, and how many they are."""

    labels: tuple[str, ...]
    sums: Tensor
    """[sources, 2], float64, on the device."""
    values: list[float] = field(default_factory=list)
    """The same over all ranks, once the step is read."""
    _waiting: list[Tensor] = field(default_factory=list)
    """Losses [T] of the parts of a micro-batch."""

    @classmethod
    def of(cls, session: Session) -> SourceSums | None:
        """The sums of a step that begins."""
        labels = mixture_labels(session.graph)
        sums = torch.zeros((len(labels), 2), dtype=torch.float64, device=session.device)
        return cls(labels, sums) if labels else None

    def keep(self, losses: Tensor) -> None:
        """Keep the losses of the next tokens of a micro-batch, 0 where there is no label."""
        self._waiting.append(losses.detach())

    def add(self, batch: LocalBatch) -> None:
        """Add the micro-batch whose losses are kept."""
        assert batch.sources is not None
        losses = torch.cat(self._waiting).view(batch.labels.shape)
        self._waiting.clear()
        is_label = batch.labels != IGNORED_LABEL
        of_rows = torch.stack([one.sum(1, dtype=torch.float64) for one in (losses, is_label)], dim=1)
        numbers = torch.arange(len(self.labels), device=of_rows.device)
        is_own = (batch.sources == numbers[:, None]).unsqueeze(2)
        # A product with 0 would spread NaN to every source.
        self.sums += torch.where(is_own, of_rows, 0.0).sum(1)


def source_metrics(session: Session) -> tuple[SourceMetrics, ...]:
    """Each source's part of the step that was read."""
    found = session.source_sums
    if found is None:
        return ()
    loader = session.loader
    order, length = loader.source.order, loader.source.dataset.sequence_length
    given = zip(order.sizes, loader.consumed(steps_before=1), loader.consumed(), strict=True)
    return tuple(
        SourceMetrics(
            label,
            tokens=(after - before) * length,
            labels=int(labels),
            loss=loss / labels if labels else None,
            epoch=after / size,
        )
        for label, (loss, labels), (size, before, after) in zip(
            found.labels, _pairs(found.values), given, strict=True
        )
    )


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(values[::2], values[1::2], strict=True))
