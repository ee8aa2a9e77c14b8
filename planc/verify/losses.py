"""Losses of the reference, a second time: each text or answer alone and without padding, by its definition.

A small model has no teacher: a distillation's probabilities are made up. A run reads them from a directory,
as it reads those of a teacher; the one process makes them up once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from planc.graph.graph import Graph
from planc.graph.ops import OpenTeacher
from planc.graph.sources import training_data
from planc.plan.train import Contrastive, Distillation, Preference
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.data.packing import PackedDataset
from planc.runtime.data.padded import LabeledDataset, MappedDataset, PaddedDataset, WordsDataset
from planc.runtime.data.spec import DataSpec, Masking
from planc.runtime.torch.training.stored_teacher import Layout, write_part
from planc.vocab import Pooling


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of which each but the first is a label."""

    tokens: Tensor
    sequence: int
    """The number of its sequence in the step."""
    sample_id: int
    """The number of its sequence in the data."""
    start: int
    """The place of its first token in the sequence."""


def texts_of(data: OpenData, sample_ids: np.ndarray, spec: DataSpec) -> list[Text]:
    """The texts of samples: each sequence with the token after it, and if documents are isolated, each of its
    documents alone."""
    length, dataset = spec.sequence_length, data.dataset
    pieces: list[np.ndarray]
    if isinstance(dataset, PaddedDataset):
        pieces = [dataset.tokens[dataset.starts[i] : dataset.starts[i + 1]] for i in sample_ids]
    else:
        assert isinstance(dataset, PackedDataset)
        pieces = [dataset.tokens[i * length : i * length + length + 1] for i in sample_ids]
    parts = [[piece] for piece in pieces]
    if spec.packing in ("isolate", "whole"):
        ends = [np.flatnonzero(piece == data.end_of_document) + 1 for piece in pieces]
        parts = [np.split(piece, at) for piece, at in zip(pieces, ends, strict=True)]
    texts = []
    for sequence, of_sequence in enumerate(parts):
        start = 0
        for part in of_sequence:
            # A text of one token has no prediction.
            if len(part) > 1:
                tokens = torch.from_numpy(part.astype(np.int64))
                texts.append(Text(tokens, sequence, int(sample_ids[sequence]), start))
            start += len(part)
    return texts


def loss_of_classes(
    model: nn.Module, dataset: Dataset, ids: np.ndarray, values_of: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """The mean loss over texts with classes, or over their words."""
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


UNLABELED = -100
_MASK, _NUM_BYTES, _TRAINING = 257, 256, 1


def masked(tokens: Sequence[int], masking: Masking, *, seed: int, place: int) -> tuple[list[int], list[int]]:
    """The inputs and labels of the masked bytes of the sequence at a place in the order of samples.

    Of three numbers for each token, the first chooses it, the second decides what becomes of it, and the last
    is the byte in its place.
    """
    length = len(tokens)
    numbers = np.random.PCG64(np.random.SeedSequence([seed, place, 0, _TRAINING])).random_raw(3 * length)
    inputs, labels = list(tokens), [UNLABELED] * length
    for index, token in enumerate(tokens):
        choice, fate = (int(numbers[part * length + index] >> np.uint64(11)) / 2**53 for part in (0, 1))
        if token >= _NUM_BYTES or choice >= masking.probability:
            continue
        labels[index] = token
        if fate < masking.mask_replace:
            inputs[index] = _MASK
        elif fate < masking.mask_replace + masking.random_replace:
            inputs[index] = int(numbers[2 * length + index]) % _NUM_BYTES
    return inputs, labels


def masked_batch(
    sequences: Sequence[Tensor], masking: Masking, *, seed: int, first: int
) -> tuple[Tensor, Tensor]:
    """(inputs, labels), both [sequences, length], of the sequences from place `first` on."""
    made = [
        masked(tokens.tolist(), masking, seed=seed, place=first + index)
        for index, tokens in enumerate(sequences)
    ]
    inputs, labels = (torch.tensor(rows) for rows in zip(*made, strict=True))
    return inputs, labels


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


PAIRS = "pairs.jsonl"
"""The pairs of the small model, in the folder of its corpus."""


def pairs_of(texts: Iterable[str]) -> list[dict[str, str]]:
    """A pair for each three texts: they need not answer anything."""
    names = ("prompt", "chosen", "rejected")
    return [dict(zip(names, three, strict=True)) for three in zip(*[iter(texts)] * 3, strict=False)]


@dataclass
class Preferences:
    """The loss of pairs by direct preference optimization.

    The model's weights are those of the reference when this is made.
    """

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


STORED = "stored-teacher"
"""The directory of what is made up, in the folder of the small model's corpus."""
MAX_TOP_K = 8
_SEED = 11
_SPREAD = 2.0
"""The standard deviation of logits: probabilities differ by more than rounding, and none is near 1."""

_Likeliest = tuple[Tensor, Tensor]
"""Ids and log-probabilities, each [sequences, length, k]."""


def made_up(dataset: Dataset, top_k: int, vocab_size: int) -> _Likeliest:
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
    likeliest: _Likeliest

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
