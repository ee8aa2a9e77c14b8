"""The interface of packed documents for loading, however they were packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import IGNORED_LABEL, Stored, pack
from planc.runtime.data.padding import pad
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.starts import Positions
from planc.runtime.data.tokenizers import Tokenizer


class Dataset(Protocol):
    """Sequences of one length: inputs, labels and positions, each [sequence_length] int64."""

    @property
    def sequence_length(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_text_bytes(self) -> int: ...
    @property
    def num_dropped_tokens(self) -> int: ...
    @property
    def max_token_id(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def position_ids(self, index: int) -> Positions: ...
    def token_types(self, index: int) -> Positions | None: ...
    def pixels(self, index: int) -> npt.NDArray[np.float32] | None: ...
    def summary(self) -> str: ...
    def digested(self) -> Iterator[tuple[str, Stored]]: ...


def packed(
    documents: Iterable[AnyDocument], spec: DataSpec, *, tokenizer: Tokenizer, bad: BadDocuments
) -> Dataset:
    """The documents as sequences. Raises DataError if there is not even one."""
    match spec.packing:
        case "attend" | "isolate":
            return pack(
                documents,
                tokenizer=tokenizer,
                sequence_length=spec.sequence_length,
                isolates=spec.packing == "isolate",
                bad=bad,
            )
        case "whole" | "none":
            return pad(
                documents,
                tokenizer=tokenizer,
                sequence_length=spec.sequence_length,
                is_shared=spec.packing == "whole",
                too_long=spec.too_long,
                in_pairs=spec.in_pairs,
                padding_id=spec.padding_id,
                token_types=spec.token_types,
                has_targets=spec.has_targets,
                bad=bad,
                images=spec.images,
            )
        case _:
            assert_never(spec.packing)


def check_vocabulary(dataset: Dataset, *, model_vocab_size: int) -> None:
    """Raises DataError if a token has no row in the model's embedding."""
    if dataset.max_token_id >= model_vocab_size:
        raise DataError(
            f"token id {dataset.max_token_id} is in the data, but the model has {model_vocab_size} token ids",
            help="use the model's own tokenizer, or a model with a larger vocab_size",
        )


def check_labels(dataset: Dataset) -> None:
    """Raises DataError if no token of any sequence is a label. The first one ends the search."""
    sequences = (dataset[index] for index in range(dataset.num_sequences))
    if not any((labels != IGNORED_LABEL).any() for _, labels in sequences):
        raise DataError("the data has no labels", help="use a source with more text or answers in it")
