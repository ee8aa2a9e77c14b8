"""Distillation in one process, from probabilities that are made up: a small model has no teacher.

A run reads them from a directory, as it reads those of a teacher; the one process makes them up once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from planc.graph.graph import Graph
from planc.graph.ops import OpenTeacher
from planc.graph.sources import training_data
from planc.plan.train import Distillation
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.torch.training.stored_teacher import Layout, write_part
from planc.verify.texts import Text

STORED = "stored-teacher"
"""The directory of what is made up, in the folder of the small model's corpus."""
MAX_TOP_K = 8
_SEED = 11
_SPREAD = 2.0
"""The standard deviation of logits: probabilities differ by more than rounding, and none is near 1."""

Likeliest = tuple[Tensor, Tensor]
"""Ids and log-probabilities, each [sequences, length, k]."""


def made_up(dataset: Dataset, top_k: int, vocab_size: int) -> Likeliest:
    """Probabilities of tokens from all parts of the vocabulary, which have less than 1 together."""
    shape = dataset.num_sequences, dataset.sequence_length
    generator = torch.Generator().manual_seed(_SEED)
    first = torch.randint(vocab_size, (*shape, 1), generator=generator)
    ids = (first + torch.arange(top_k) * (vocab_size // top_k)) % vocab_size
    logits = _SPREAD * torch.randn(*shape, top_k + 1, generator=generator)
    values = logits.log_softmax(-1)[..., :top_k].sort(descending=True).values
    return ids.int(), values


def store_teacher(graph: Graph, *, base: Path) -> None:
    """Write what a run of the small graph reads; nothing without a teacher."""
    op = next((op for op in graph.setup if isinstance(op, OpenTeacher)), None)
    if op is None:
        return
    training = training_data(graph)
    data = open_data(data_spec(training, training=training), base=base, model_vocab_size=training.vocab_size)
    ids, values = made_up(data.dataset, op.top_k, training.vocab_size)
    layout = Layout(data.dataset.num_sequences, data.dataset.sequence_length, op.top_k)
    origin = {"teacher": op.teacher, "top_k": str(op.top_k), "data": data.fingerprint}
    folder = base / op.path
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(layout.num_parts):
        own = layout.part(number)
        write_part(folder, number, ids[own.start : own.stop], values[own.start : own.stop], origin)


@dataclass(frozen=True, slots=True)
class Taught:
    """The loss of tokens of which a teacher's probabilities are known."""

    kind: Distillation
    likeliest: Likeliest

    def values_of(self, logits: Tensor, texts: Sequence[Text]) -> Tensor:
        """The loss of each token, of logits [texts, length, vocabulary] of texts of one length."""
        return torch.cat([self._of_text(own, text) for own, text in zip(logits, texts, strict=True)])

    def _of_text(self, logits: Tensor, text: Text) -> Tensor:
        places = slice(text.start, text.start + len(logits))
        ids, kept = (every[text.sample_id, places] for every in self.likeliest)
        weight, temperature = self.kind.weight, self.kind.temperature
        # Of the tokens that are stored, whose sum is 1 at any temperature.
        teacher = torch.softmax(kept.to(logits.dtype) / temperature, -1)
        student = torch.log_softmax(logits / temperature, -1).gather(-1, ids.long())
        divergence = (teacher * (teacher.log() - student)).sum(-1)
        entropy = -torch.log_softmax(logits, -1).gather(-1, text.tokens[1:, None]).squeeze(-1)
        return weight * temperature**2 * divergence + (1 - weight) * entropy
