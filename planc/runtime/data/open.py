"""Opening what a plan's data settings say: data ready to be read, in memory or in prepared files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from planc.hub.names import model_folder
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.dataset import Dataset, check_labels, check_vocabulary, packed
from planc.runtime.data.documents import spec_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.fingerprint import data_fingerprint, mixture_fingerprint
from planc.runtime.data.images import Preprocessor
from planc.runtime.data.masking import TokenMasks, masks_of
from planc.runtime.data.mixture import JoinedDatasets, MixtureOrder
from planc.runtime.data.order import Order, PairOrder, SampleOrder
from planc.runtime.data.packing import Stored, joined
from planc.runtime.data.padded import ImageDataset
from planc.runtime.data.padding import padded
from planc.runtime.data.prepared.folder import Prepared
from planc.runtime.data.prepared.index import ArrayName
from planc.runtime.data.prepared.stored_array import StoredArray, StoredStarts
from planc.runtime.data.prepared.wanted import Wanted, want
from planc.runtime.data.shares import Shares
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import Tokenizer, TokenizerFiles
from planc.runtime.ranks.reads import Reads


@dataclass(frozen=True, slots=True)
class OpenData:
    """Tokenized data, its order, and the fingerprint that a resumed run must match.

    `marks` names what documents begin and end with. `left_out` names each bad document that the data was
    made without.
    """

    dataset: Dataset
    tokenizer: TokenizerFiles
    order: Order
    end_of_document: int
    fingerprint: str
    left_out: tuple[str, ...] = ()
    marks: str = ""
    masks: TokenMasks | None = None
    """The masks of a masked language model's data; None for others."""


def open_data(spec: DataSpec, *, base: Path, model_vocab_size: int, reads: Reads | None = None) -> OpenData:
    """Everything read, tokenized and packed in memory; paths are relative to `base`. Raises DataError.

    `reads` records every file as it is read, and the resulting tokens.
    """
    return open_in_memory(want(spec, base=base, reads=reads), model_vocab_size=model_vocab_size, reads=reads)


def open_in_memory(wanted: Wanted, *, model_vocab_size: int, reads: Reads | None = None) -> OpenData:
    """Open as `open_data` does, in memory."""
    spec, bad = wanted.spec, BadDocuments(wanted.spec.skip_bad)
    with contextlib.closing(wanted.tokenizer.load()) as tokenizer:
        documents = spec_documents(spec, base=wanted.base, reads=reads, bad=bad)
        dataset = packed(documents, spec, tokenizer=tokenizer, bad=bad)
        masks = _masks(spec, tokenizer, model_vocab_size=model_vocab_size)
    return _opened(
        dataset,
        wanted,
        masks,
        end_of_document=tokenizer.end_of_document,
        marks=tokenizer.marks,
        left_out=bad.messages,
        model_vocab_size=model_vocab_size,
        reads=reads,
    )


def open_prepared(
    prepared: Prepared, wanted: Wanted, *, model_vocab_size: int, reads: Reads | None = None
) -> OpenData:
    """The same data from prepared files: nothing is tokenized, and nothing but what is asked for is read.

    `reads` records what was read when it was prepared.
    """
    index = prepared.index
    if reads is not None:
        for read in index.reads:
            reads.add(read.kind, read.name, read.value)
    masks = None
    if wanted.spec.masking is not None:
        with contextlib.closing(wanted.tokenizer.load(num_processes=1)) as tokenizer:
            masks = _masks(wanted.spec, tokenizer, model_vocab_size=model_vocab_size)
    return _opened(
        _stored(prepared, wanted.spec),
        wanted,
        masks,
        end_of_document=index.end_of_document,
        marks=index.marks,
        left_out=index.left_out,
        model_vocab_size=model_vocab_size,
        reads=reads,
    )


@dataclass(frozen=True, slots=True)
class MixedData:
    """One source of a mixture. `weight` is a fraction; empty for as many sequences as it has."""

    label: str
    weight: str
    data: OpenData


def mixed(sources: Sequence[MixedData], *, seed: int) -> OpenData:
    """The sources as one dataset: in the order of their weights, or in that of all of their sequences."""
    datasets = tuple(source.data.dataset for source in sources)
    weights = tuple(source.weight for source in sources)
    joined = JoinedDatasets(tuple(source.label for source in sources), datasets)
    sizes = tuple(dataset.num_sequences for dataset in datasets)
    order: Order = SampleOrder(joined.num_sequences, seed, sizes)
    if all(weights):
        order = MixtureOrder(sizes, Shares.of([Fraction(weight) for weight in weights]), seed)
    return OpenData(
        joined,
        sources[0].data.tokenizer,
        order,
        sources[0].data.end_of_document,
        mixture_fingerprint([source.data.fingerprint for source in sources], weights=weights),
        tuple(message for one in sources for message in one.data.left_out),
        _marks(sources),
        sources[0].data.masks,
    )


def _marks(sources: Sequence[MixedData]) -> str:
    """The marks of all sources at once, or of each: conversations have ends of turns too."""
    if len({source.data.marks for source in sources}) == 1:
        return sources[0].data.marks
    return "; ".join(f"{source.label}: {source.data.marks}" for source in sources)


def _stored(prepared: Prepared, spec: DataSpec) -> Dataset:
    index, length = prepared.index, spec.sequence_length
    arrays: dict[str, Stored] = {name: _array(prepared, name) for name in index.arrays}
    starts = None
    if spec.packing in ("isolate", "whole"):
        starts = StoredStarts(_array(prepared, "document_starts"), sampled=_array(prepared, "sampled_starts"))
    if spec.packing in ("whole", "none"):
        return padded(
            arrays,
            totals=index.totals,
            sequence_length=length,
            padding_id=index.end_of_document if spec.padding_id is None else spec.padding_id,
            token_types=spec.token_types,
            has_targets=spec.has_targets,
            document_starts=starts,
        )
    return joined(arrays, totals=index.totals, sequence_length=length, document_starts=starts)


def _masks(spec: DataSpec, tokenizer: Tokenizer, *, model_vocab_size: int) -> TokenMasks | None:
    if spec.masking is None:
        return None
    return masks_of(spec.masking, tokenizer, seed=spec.shuffle_seed, model_vocab_size=model_vocab_size)


def _array(prepared: Prepared, name: ArrayName) -> StoredArray:
    return StoredArray(prepared.folder, name=name, entry=prepared.index.arrays[name])


def _opened(
    dataset: Dataset,
    wanted: Wanted,
    masks: TokenMasks | None,
    *,
    end_of_document: int,
    marks: str,
    left_out: tuple[str, ...],
    model_vocab_size: int,
    reads: Reads | None,
) -> OpenData:
    spec = wanted.spec
    if spec.shuffle_seed < 0:
        raise DataError(f"shuffle_seed is {spec.shuffle_seed}", help="set shuffle_seed to 0 or more")
    check_vocabulary(dataset, model_vocab_size=model_vocab_size)
    check_labels(dataset)
    if isinstance(dataset, ImageDataset) and spec.images is not None:
        folder = model_folder(spec.images.path, base=wanted.base)
        own = Preprocessor(folder, name=spec.images.path, shape=spec.images.shape, reads=reads)
        dataset = replace(dataset, preprocessor=own)
    fingerprint = data_fingerprint(spec, tokenizer_digest=wanted.tokenizer.digest, dataset=dataset)
    if reads is not None:
        reads.add("tokens", "data", fingerprint)
    order: Order = SampleOrder(dataset.num_sequences, spec.shuffle_seed)
    if spec.in_pairs and not spec.has_targets:
        order = PairOrder(SampleOrder(dataset.num_sequences // 2, spec.shuffle_seed))
    return OpenData(dataset, wanted.tokenizer, order, end_of_document, fingerprint, left_out, marks, masks)
