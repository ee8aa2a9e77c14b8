"""From a plan's data settings to data ready to be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planc.runtime.data.chat import ChatSource, conversations
from planc.runtime.data.dataset import Dataset, check_labels, check_vocabulary, packed
from planc.runtime.data.errors import DataError
from planc.runtime.data.fingerprint import data_fingerprint
from planc.runtime.data.hf_datasets import HfDatasetSource, HfHubSource, dataset_documents
from planc.runtime.data.order import SampleOrder
from planc.runtime.data.sources import Document, documents
from planc.runtime.data.spec import DataSpec, Source
from planc.runtime.data.tokenizers import Tokenizer, load_tokenizer
from planc.runtime.ranks.reads import Reads


@dataclass(frozen=True, slots=True)
class OpenData:
    """Tokenized data, its order, and the fingerprint that a resumed run must match."""

    dataset: Dataset
    order: SampleOrder
    tokenizer: Tokenizer
    fingerprint: str


def open_data(spec: DataSpec, *, base: Path, model_vocab_size: int, reads: Reads | None = None) -> OpenData:
    """Everything read, tokenized and packed; paths are relative to `base`. Raises DataError.

    `reads` records every file as it is read, and the resulting tokens.
    """
    if spec.shuffle_seed < 0:
        raise DataError(f"shuffle_seed is {spec.shuffle_seed}", help="set shuffle_seed to 0 or more")
    tokenizer = load_tokenizer(spec.tokenizer, base=base, end_of_document=spec.end_of_document, reads=reads)
    dataset = packed(
        source_documents(spec.source, base=base, tokenizer=tokenizer, reads=reads),
        packing=spec.packing,
        tokenizer=tokenizer,
        sequence_length=spec.sequence_length,
    )
    check_vocabulary(dataset, model_vocab_size=model_vocab_size)
    check_labels(dataset)
    fingerprint = data_fingerprint(spec, tokenizer=tokenizer, dataset=dataset)
    if reads is not None:
        reads.add("tokens", "data", fingerprint)
    return OpenData(
        dataset=dataset,
        order=SampleOrder(dataset.num_sequences, spec.shuffle_seed),
        tokenizer=tokenizer,
        fingerprint=fingerprint,
    )


def source_documents(
    source: Source, *, base: Path, tokenizer: Tokenizer, reads: Reads | None = None
) -> Iterator[Document]:
    """The documents of any source, always in the same order. Raises DataError."""
    match source:
        case ChatSource():
            if tokenizer.chat_template is None:
                raise DataError(
                    f"the tokenizer {tokenizer.name} has no chat template",
                    help="use one with a chat_template.jinja, or a chat_template in tokenizer_config.json",
                )
            return conversations(source, base=base, template=tokenizer.chat_template, reads=reads)
        case HfDatasetSource() | HfHubSource():
            return dataset_documents(source, base=base, reads=reads)
        case _:
            return documents(source, base=base, reads=reads)
