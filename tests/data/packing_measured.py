"""Packing measured on whole conversations: `python -m tests.data.packing_measured`.

Each row is a distribution of lengths. Conversations are rendered and tokenized by transformers, which is the
reference for what a conversation is; planc packs the same file. Nothing of planc counts the labels: a label
has its conversation's start if the sequence holds the conversation's ids from the first one on.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.open import open_data
from planc.runtime.data.spec import DataSpec, Packing
from planc.tables import render_table
from tests.data.conversing import save_talks, save_tokenizer
from tests.data.first_fit import DISTRIBUTIONS, best_fit_decreasing, first_fit_decreasing, lengths_of

LENGTH, COUNT = 512, 1_500
_IGNORED = -100
_WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "over", "hills", "where", "you")


@dataclass(frozen=True, slots=True)
class Measured:
    """One distribution, packed."""

    name: str
    num_sequences: int
    first_fit: int
    best_fit: int
    num_labels: int
    num_without_start: int
    num_without_start_isolated: int
    """The same count for `packing = isolate`."""


def measured(name: str, *, folder: Path, length: int = LENGTH, count: int = COUNT) -> Measured:
    talks = list(_talks(name, length=length, count=count))
    save_talks(folder / "talks.jsonl", *talks)
    # A tokenizer's folder as a user downloads it, which transformers opens alone.
    tokenizer: Any = AutoTokenizer.from_pretrained(str(save_tokenizer(folder / "tokenizer")))
    ids = [_ids(tokenizer, talk, room=length + 1) for talk in talks]
    # Nothing is learned from a conversation that is cut before its answer.
    ids = [one for one in ids if one]
    whole, isolated = (_opened(packing, folder=folder, length=length) for packing in ("whole", "isolate"))
    lengths = [min(len(one), length + 1) for one in ids]
    num_labels, num_without_start = _counted(whole, ids)
    return Measured(
        name,
        whole.num_sequences,
        first_fit_decreasing(lengths, room=length + 1),
        best_fit_decreasing(lengths, room=length + 1),
        num_labels,
        num_without_start,
        _counted(isolated, ids)[1],
    )


def _opened(packing: Packing, *, folder: Path, length: int) -> Dataset:
    spec = DataSpec(ChatSource(("talks.jsonl",)), "tokenizer", length, 0, packing)
    return open_data(spec, base=folder, model_vocab_size=400).dataset


def _talks(name: str, *, length: int, count: int) -> Iterator[list[dict[str, str]]]:
    rng = random.Random(name)
    for tokens in lengths_of(name, length=length, count=count):
        # About two tokens of this small vocabulary in a word, and thirty in the frame of a conversation.
        words = max(2, (tokens - 30) // 3)
        asked = rng.randint(1, words - 1)
        text = [rng.choice(_WORDS) for _ in range(words)]
        question, answer = " ".join(text[:asked]), " ".join(text[asked:])
        yield [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _ids(tokenizer: Any, talk: list[dict[str, str]], *, room: int) -> tuple[int, ...]:
    """The conversation's ids, as many as a sequence has room for; none if no answer is among them."""
    found = tokenizer.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    is_answer = any(found["assistant_masks"][:room])
    return (*found["input_ids"], tokenizer.eos_token_id)[:room] if is_answer else ()


def _counted(dataset: Dataset, conversations: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """The labels of all sequences, and those whose conversation does not begin in their sequence."""
    by_start: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for one in conversations:
        by_start.setdefault(one[:8], []).append(one)
    num_labels = num_without = 0
    for index in range(dataset.num_sequences):
        inputs, labels = dataset[index]
        starts = np.flatnonzero(dataset.position_ids(index) == 0)
        for start, stop in zip(starts, [*starts[1:], len(inputs)], strict=True):
            part = tuple(inputs[start:stop].tolist())
            number = int((labels[start:stop] != _IGNORED).sum())
            num_labels += number
            if not any(one[: len(part)] == part for one in by_start.get(part[:8], ())):
                num_without += number
    return num_labels, num_without


def main() -> int:
    found = []
    for name in DISTRIBUTIONS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(name, folder=Path(folder)))
    header = ("lengths", "sequences", "first fit", "best fit", "over first fit", "labels", "without a start")
    rows = [
        [
            one.name,
            str(one.num_sequences),
            str(one.first_fit),
            str(one.best_fit),
            f"{one.num_sequences / one.first_fit - 1:+.2%}",
            str(one.num_labels),
            f"{one.num_without_start} ({one.num_without_start_isolated} with isolate)",
        ]
        for one in found
    ]
    print(render_table(rows, header=header, right=(1, 2, 3, 4, 5)))
    is_sound = all(one.num_without_start == 0 and one.num_sequences <= 1.02 * one.first_fit for one in found)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
