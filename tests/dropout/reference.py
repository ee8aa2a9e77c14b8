"""One process that trains with dropout: transformers, numpy and torch alone, and the masks of the document.

`torch.nn.functional.dropout` is replaced while it trains, so modules of transformers use these masks.
Nothing of planc is imported: weights, data, order, loss and optimizer are this file's or transformers' own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from tests.dropout.formula import dropped, key_of

NUM_STEPS = 3
GLOBAL_BATCH, SEQUENCE_LENGTH = 6, 16
SEED, SHUFFLE_SEED = 7, 42
LEARNING_RATE, BETAS, EPS = 1e-2, (0.9, 0.95), 1e-3
CORPUS = "corpus.txt"
_END_OF_DOCUMENT = 256
_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Trained:
    """What the process did: losses, the first step's gradients, the shares of zeros by draw and step."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]
    final: dict[str, Tensor]
    num_dropped: dict[str, int]
    """The number of dropouts of the first step, by module."""


def write_corpus(folder: Path) -> None:
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(100))
    (folder / CORPUS).write_text(text, encoding="ascii")


def write_weights(folder: Path) -> None:
    """transformers' own initialization with noise, in float32, next to a config.json."""
    torch.manual_seed(11)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += _NOISE * torch.randn_like(parameter)
    model.save_pretrained(folder)


def train(rank: int, world_size: int, folder: Path, dtype: str) -> Trained:
    """Steps of `folder`/model with its own dropout, in this dtype."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=getattr(torch, dtype), local_files_only=True, attn_implementation="eager"
    )
    model.train()
    windows, order = _windows(folder / CORPUS), None
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=0.0
    )
    losses, gradients, num_dropped = [], {}, Counter[str]()
    order = _order(len(windows))
    for step in range(1, NUM_STEPS + 1):
        tokens = windows[[next(order) for _ in range(GLOBAL_BATCH)]]
        with _documented_dropout(model, step, num_dropped if step == 1 else Counter()):
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        logits = logits if dtype == "float64" else logits.float()
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 1:
            named = model.named_parameters()
            gradients = {name: one.grad.clone() for name, one in named if one.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    final = {name: one.detach().clone() for name, one in model.named_parameters()}
    return Trained(tuple(losses), gradients, final, dict(num_dropped))


@contextmanager
def _documented_dropout(model: nn.Module, step: int, num_dropped: Counter[str]) -> Iterator[None]:
    running: list[str] = []
    numbers = Counter[str]()

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0.0:
            return input
        name = running[-1]
        mask = _mask(input.shape, key_of(SEED, step, name, numbers[name]), p)
        numbers[name] += 1
        return input * torch.from_numpy(~mask).to(input.dtype) / (1 - p)

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))  # type: ignore[misc]
        handles.append(module.register_forward_hook(partial(_leave, running)))
    with patch("torch.nn.functional.dropout", dropout):
        yield
    for handle in handles:
        handle.remove()
    num_dropped.update(numbers)


def _leave(running: list[str], *_: object) -> None:
    running.pop()


def _mask(shape: torch.Size, key: int, probability: float) -> np.ndarray[Any, Any]:
    """Of a tensor [samples, ...], of one without samples, or of [samples * tokens, features]."""
    if shape[0] == GLOBAL_BATCH:
        return dropped(key, tuple(shape), probability)
    if shape[0] == GLOBAL_BATCH * SEQUENCE_LENGTH:
        return dropped(key, (GLOBAL_BATCH, SEQUENCE_LENGTH, *shape[1:]), probability).reshape(shape)
    if shape[1] == GLOBAL_BATCH:
        return dropped(key, (GLOBAL_BATCH, shape[0], *shape[2:]), probability).swapaxes(0, 1).copy()
    return dropped(key, (1, *shape), probability)[0]


def _windows(corpus: Path) -> Tensor:
    """[sequences, sequence_length + 1]: bytes, each sequence with the token after it."""
    stream = torch.tensor([*corpus.read_bytes(), _END_OF_DOCUMENT])
    starts = range(0, len(stream) - SEQUENCE_LENGTH, SEQUENCE_LENGTH)
    return torch.stack([stream[start : start + SEQUENCE_LENGTH + 1] for start in starts])


def _order(num_sequences: int) -> Iterator[int]:
    """Epoch after epoch, each sorted by raw PCG64 numbers that are seeded with (shuffle_seed, epoch)."""
    epoch = 0
    while True:
        keys = np.random.PCG64(np.random.SeedSequence([SHUFFLE_SEED, epoch])).random_raw(num_sequences)
        yield from sorted(range(num_sequences), key=lambda index, keys=keys: (keys[index], index))  # type: ignore[misc]
        epoch += 1
