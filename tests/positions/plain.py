"""Tiny models trained by transformers alone: weights, text, tokens and loss without anything of planc.

No `position_ids` are given, so every model takes those that it means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCE_LENGTH = 32
NUM_SEQUENCES = 4
"""All that the text has: a step takes every one, so their order is indifferent."""
END = 256
"""The token behind every document, where tokens are bytes."""
CORPUS = "documents.jsonl"
_PADDING = "\x01"
"""A byte, and the id that models with padding call 1."""


@dataclass(frozen=True, slots=True)
class Plain:
    """One step of one process: the mean loss, and the gradient of every parameter by name."""

    loss: float
    gradients: dict[str, Tensor]


def save_model(folder: Path, *, model_type: str, sizes: Mapping[str, Any]) -> None:
    """Writes a model with random weights, as transformers saves it."""
    config = AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Large, so positions matter; biases too, which start at 0.
            parameter.normal_(std=0.2)
    model.save_pretrained(folder)


def save_corpus(path: Path) -> None:
    """Documents that begin and end within sequences, some with the byte that may mean padding."""
    words = ("the", "mesh", f"of{_PADDING}", "ranks", f"holds{_PADDING * 2}", "every", "weight")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(40))
    lengths, start = (11, 30, 2, 40, 17), 0
    with path.open("w", encoding="utf-8") as file:
        for length in lengths:
            file.write(json.dumps({"text": text[start : start + length]}) + "\n")
            start += length
        file.write(json.dumps({"text": text[start : start + 23]}) + "\n")


def plain_step(folder: Path, *, corpus: Path, isolates: bool) -> Plain:
    """Loss and gradients of the whole text, cut into sequences; with `isolates` every document alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.train()
    total, num_labels = torch.zeros(()), 0
    for tokens in _pieces(corpus, isolates=isolates):
        logits = model(input_ids=tokens[None, :-1], use_cache=False).logits
        total = total + cross_entropy(logits[0], tokens[1:], reduction="sum")
        num_labels += len(tokens) - 1
    loss = total / num_labels
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Plain(loss.item(), found)


def _pieces(corpus: Path, *, isolates: bool) -> Iterator[Tensor]:
    """Each sequence with the token after it; where documents are apart, each of its documents."""
    stream: list[int] = []
    for line in corpus.read_text(encoding="utf-8").splitlines():
        stream += [*json.loads(line)["text"].encode(), END]
    assert (len(stream) - 1) // SEQUENCE_LENGTH == NUM_SEQUENCES
    for index in range(NUM_SEQUENCES):
        rest = stream[index * SEQUENCE_LENGTH : (index + 1) * SEQUENCE_LENGTH + 1]
        while isolates and END in rest[:-1]:
            cut = rest.index(END) + 1
            piece, rest = rest[:cut], rest[cut:]
            if len(piece) > 1:
                yield torch.tensor(piece)
        if len(rest) > 1:
            yield torch.tensor(rest)
