"""From what a plan says to data ready to be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planc.runtime.data.errors import DataError
from planc.runtime.data.fingerprint import data_fingerprint
from planc.runtime.data.order import SampleOrder
from planc.runtime.data.packing import PackedDataset, check_vocabulary, pack
from planc.runtime.data.sources import documents
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class OpenData:
    """Tokenized data, its order, and the fingerprint that a resumed run must find again."""

    dataset: PackedDataset
    order: SampleOrder
    tokenizer: Tokenizer
    fingerprint: str


def open_data(spec: DataSpec, *, base: Path, model_vocab_size: int) -> OpenData:
    """Everything read, tokenized and packed; paths are relative to `base`. Raises DataError."""
    if spec.shuffle_seed < 0:
        raise DataError(f"shuffle_seed is {spec.shuffle_seed}", help="shuffle_seed is 0 or more")
    tokenizer = load_tokenizer(spec.tokenizer, base=base, end_of_document=spec.end_of_document)
    dataset = pack(
        documents(spec.source, base=base), tokenizer=tokenizer, sequence_length=spec.sequence_length
    )
    check_vocabulary(dataset, model_vocab_size=model_vocab_size)
    return OpenData(
        dataset=dataset,
        order=SampleOrder(dataset.num_sequences, spec.shuffle_seed),
        tokenizer=tokenizer,
        fingerprint=data_fingerprint(spec, tokenizer=tokenizer, dataset=dataset),
    )
