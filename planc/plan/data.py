"""The `data` block: where text comes from, how it becomes batches, and evaluation data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from planc.data_sources import BY_NAME, SourceKind
from planc.data_sources.globs import without_compression
from planc.extend.decorators import DATA_SOURCE, ROW_TRANSFORM
from planc.extend.reference import Extension
from planc.plan.conversations import DATASETS, IGNORED, SPLIT, SUBSET, Chat, ImageChat, Pairs, Split
from planc.plan.extensions import OnlyExtension, OrExtension
from planc.plan.keys import key, keyed
from planc.plan.nested import nested
from planc.plan.quantities import STEPS
from planc.plan.scalars import Choice, Float, Int, Path, Quantity, Text
from planc.plan.shares import Share, Weight
from planc.plan.types import List, Optional, OrAuto, Rest, Variant
from planc.record import record

if TYPE_CHECKING:
    # Few plans have weights, and others should not pay for the import.
    from fractions import Fraction


@keyed
class TextFiles:
    patterns: tuple[str, ...] = key(
        Rest(Path()), doc="globs of UTF-8 text files; .gz, .zst, .xz and .bz2 are read too", positional=True
    )


@keyed
class JsonLines:
    patterns: tuple[str, ...] = key(
        Rest(Path()), doc="globs of files of one JSON object per line, or of one list", positional=True
    )
    field: str = key(Text(), unsaid="text", doc="the key that holds a document's text")


@keyed
class HfDataset:
    """Hugging Face datasets in local files (.parquet, .arrow, .json, .jsonl) and directories."""

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    field: str = key(Text(), unsaid="text", doc="the column that holds a document's text")
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@keyed
class HfHub:
    """A dataset on the Hugging Face Hub, at one commit; its scripts never run."""

    repository: str = key(Text(), doc="the repository, as in `org/name`", positional=True)
    revision: str = key(Text(), doc="the commit: 40 hexadecimal digits")
    field: str = key(Text(), unsaid="text", doc="the column that holds a document's text")
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@keyed
class Labeled:
    """Texts or pairs of texts with their classes, numbers from 0 on or names, for
    `task = sequence_classification`; for `token_classification`, lists of words with lists of classes."""

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    field: str = key(Text(), unsaid="text", doc="the key that holds a row's text, or its words")
    pair: str | None = key(
        Optional(Text()),
        unsaid=None,
        doc="the key of a second text, after the first; if both are too long, the longer one loses its end",
    )
    label: str = key(Text(), unsaid="label", doc="the key that holds its class, or its words' classes")
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@keyed
class Matched:
    """Pairs of texts that belong together, for `task = embedding`: a query and its positive."""

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    query: str = key(Text(), unsaid="query", doc="the key that holds a row's query")
    positive: str = key(
        Text(), unsaid="positive", doc="the key that holds the text that belongs to it, such as its answer"
    )
    ignore: tuple[str, ...] = key(List(Text()), unsaid=(), doc=IGNORED, example='["id"]')
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@keyed
class Mapped:
    """Inputs and their targets, for `task = seq2seq_lm`: a text and its summary or its translation."""

    patterns: tuple[str, ...] = key(Rest(Path()), doc=DATASETS, positional=True)
    input: str = key(Text(), unsaid="input", doc="the key that holds a row's input, for the encoder")
    target: str = key(Text(), unsaid="target", doc="the key that holds its target, which is learned")
    ignore: tuple[str, ...] = key(List(Text()), unsaid=(), doc=IGNORED, example='["id"]')
    split: str = key(Split(), unsaid="train", doc=SPLIT)
    subset: str | None = key(Optional(Text()), unsaid=None, doc=SUBSET)


@record
class PythonStdlib:
    """The running interpreter's own standard library: real text on every machine."""


@record
class ByteTokenizer:
    """One token per UTF-8 byte, and 256 at the end of a document."""


@keyed
class FileTokenizer:
    path: str = key(
        Path(), doc="a tokenizer's directory, its tokenizer.json, or such a file alone", positional=True
    )
    end_of_document: str | None = key(
        Optional(Text()), unsaid=None, doc="the token after each document; none is the tokenizer's own"
    )
    begin_of_document: str | None = key(
        OrAuto(Optional(Text())),
        unsaid="auto",
        doc="the token before each document; auto is what the tokenizer puts there, if anything; a "
        "conversation's template writes its own",
    )


class Packing(StrEnum):
    ATTEND = "attend"
    ISOLATE = "isolate"
    WHOLE = "whole"
    NONE = "none"

    @property
    def isolates(self) -> bool:
        """Whether several documents share a sequence and do not attend to each other."""
        return self in (Packing.ISOLATE, Packing.WHOLE)

    @property
    def divides(self) -> bool:
        """Whether a document may continue in the next sequence."""
        return self in (Packing.ATTEND, Packing.ISOLATE)


class TooLong(StrEnum):
    TRUNCATE = "truncate"
    SKIP = "skip"


_CALLS = {
    **dict.fromkeys((".json", ".jsonl"), "jsonl"),
    **dict.fromkeys((".parquet", ".arrow"), "hf_dataset"),
    **dict.fromkeys((".txt", ".md", ".py"), "text"),
}
"""The call that reads files of a suffix."""


def _source_of(text: str) -> tuple[str, bool]:
    """The call to write for the path of files; a path without a known suffix may be of any."""
    call = _CALLS.get(PurePosixPath(without_compression(text)).suffix)
    return f'{call or "text"}("{text}")', call is not None


def source_call(text: str) -> str:
    """The call that reads the files of a path or a glob."""
    return _source_of(text)[0]


def _tokenizer_of(text: str) -> tuple[str, bool]:
    """The call to write for a tokenizer's path; a model's name is not a path."""
    if text.endswith("tokenizer.json"):
        return f'file("{text}")', True
    return 'file("path/to/tokenizer.json")', False


RowSource = JsonLines | Chat | HfDataset | HfHub | Labeled
_ROW_SOURCES: Mapping[str, type[RowSource]] = {
    "jsonl": JsonLines,
    "chat": Chat,
    "hf_dataset": HfDataset,
    "hf_hub": HfHub,
    "labeled": Labeled,
}


@keyed
class Transformed:
    """The rows of a source, each replaced by what a row transform of the plan's own code returns."""

    source: RowSource = key(
        Variant(_ROW_SOURCES, "source of rows"),
        doc="the rows, and how those in their place are read",
        positional=True,
    )
    by: Extension = key(
        OnlyExtension(ROW_TRANSFORM), doc="a row transform that an `extension` registers", example="clean"
    )


FileSource = TextFiles | RowSource | ImageChat | Pairs | Matched | Mapped | PythonStdlib
AnySource = FileSource | Transformed | Extension
DatasetSource = Chat | ImageChat | Pairs | Labeled | Matched | Mapped | HfDataset
"""Sources of rows, whose patterns may name a dataset of the Hub or a directory of one."""

SOURCES: Mapping[str, type[FileSource | Transformed]] = {
    "text": TextFiles,
    **_ROW_SOURCES,
    "image_chat": ImageChat,
    "pairs": Pairs,
    "matched": Matched,
    "mapped": Mapped,
    "python_stdlib": PythonStdlib,
    "transformed": Transformed,
}
_SOURCE = OrExtension(DATA_SOURCE, Variant(SOURCES, "source", _source_of))


def untransformed(source: AnySource) -> FileSource | Extension:
    """The source whose rows are transformed; any other itself."""
    return source.source if isinstance(source, Transformed) else source


def _packing(values: Mapping[str, Any]) -> Packing:
    """Conversations are kept whole: an answer without its question teaches a model to invent."""
    mixed = (one.source for one in values.get("mixture", {}).values() if one is not None)
    sources = (untransformed(given) for given in (values.get("source"), *mixed) if given is not None)
    kinds = {type(one) for one in sources}
    if {ImageChat, Pairs, Labeled, Matched, Mapped} & kinds:
        return Packing.NONE
    return Packing.WHOLE if Chat in kinds else Packing.ATTEND


def _too_long(values: Mapping[str, Any]) -> TooLong | None:
    """A cut answer has another probability, so pairs are kept whole or left out."""
    packing = values.get("packing", Packing.ATTEND)
    whole = TooLong.SKIP if isinstance(values.get("source"), Pairs) else TooLong.TRUNCATE
    return None if packing.divides else whole


def source_kind(source: FileSource) -> type[SourceKind]:
    """Return the record of this kind of source."""
    return next(BY_NAME[name] for name, case in SOURCES.items() if type(source) is case)


@keyed
class EvalSpec:
    """The loss on held-out text, with the tokenizer, packing and lengths of `data`."""

    source: AnySource | None = key(
        _SOURCE,
        unless="share",
        doc="where text comes from, unless it is a `share` of the training data",
        example='text("held_out/*.txt")',
    )
    share: Fraction | None = key(
        Optional(Share()),
        unsaid=None,
        doc="the share of the training documents that is held out for this, by a hash of each document",
        example="1 %",
    )
    every: int = key(
        Quantity(STEPS, low=1),
        doc="steps between evaluations; the last step is evaluated too",
        example="100 steps",
    )
    sequences: int | None = key(
        Optional(Int(1)), unsaid=None, doc="number of sequences, from the start; none is all"
    )
    patience: int | None = key(
        Optional(Int(1)),
        unsaid=None,
        doc="evaluations in a row without improvement after which the run ends; none trains all steps",
    )
    min_delta: float = key(
        Float(low=0.0), unsaid=0.0, doc="for `patience`: a loss is better if it is lower by more than this"
    )
    keep_best: int = key(
        Int(0, 1_000),
        unsaid=0,
        doc="checkpoints to keep for the lowest loss in this evaluation, next to `checkpoint.keep_last`",
    )


@keyed
class MixedSource:
    """One source of several, and its weight among them."""

    source: AnySource = key(_SOURCE, doc="where text comes from", example='text("web/*.txt")')
    weight: Fraction | None = key(
        Optional(Weight()),
        unsaid=None,
        doc="its share of the sequences, next to the other weights; none for all sources: as many as it has",
    )


@keyed
class DataSpec:
    """The text, its tokens, and how they become batches."""

    source: AnySource | None = key(
        _SOURCE,
        unless="source",
        doc="where text comes from, unless `source` blocks give several sources",
        example='text("data/*.txt")',
    )
    sequence_length: int = key(Int(1, 2**24), doc="tokens per sequence", example="2048")
    micro_batch: int = key(Int(1, 2**20), doc="sequences per forward on one data-parallel rank", example="1")
    tokenizer: ByteTokenizer | FileTokenizer = key(
        Variant({"bytes": ByteTokenizer, "file": FileTokenizer}, "tokenizer", _tokenizer_of),
        unsaid=ByteTokenizer(),
        doc="text to tokens, on a rank's share of the machine's CPUs",
    )
    packing: Packing = key(
        Choice(Packing),
        unsaid=Packing.ATTEND,
        derived=_packing,
        doc="attend: documents share sequences and attend to each other; isolate: they do not; whole: they "
        "do not, and none is split between sequences; none: one document per sequence; for chat, the "
        "default is whole, and for image_chat, pairs, labeled, "
        "matched and mapped none",
    )
    too_long: TooLong | None = key(
        Optional(Choice(TooLong)),
        unsaid=None,
        derived=_too_long,
        doc="for packing whole and none, documents longer than a sequence: truncate (the default) or skip "
        "(the default for pairs)",
    )
    shuffle_seed: int = key(Int(0), unsaid=0, doc="seeds the sample order, together with the epoch")
    prefetch: int = key(
        Int(0, 64), unsaid=2, doc="steps of samples to prepare ahead; does not change their order"
    )
    skip_bad: int = key(
        Int(0, 1_000),
        unsaid=0,
        doc="bad documents to leave out of the training data, and of each evaluation's; a run names each",
    )
    mixture: Mapping[str, MixedSource] = nested(
        {"name": MixedSource}, any_label=True, name="source", doc="one source of several, under a name"
    )
    eval: Mapping[str, EvalSpec] = nested(
        {"name": EvalSpec}, any_label=True, doc="the loss on other text, under a name that you choose"
    )

    def training(self) -> Iterator[tuple[str, FileSource | Extension]]:
        """The sources of training data, untransformed, by the path of their setting."""
        if self.source is not None:
            yield "data.source", untransformed(self.source)
        for label, one in self.mixture.items():
            yield f"data.source.{label}.source", untransformed(one.source)

    def sources(self) -> Iterator[tuple[str, FileSource | Extension]]:
        """All sources of a run, as `training` has them."""
        yield from self.training()
        for label, evaluation in self.eval.items():
            if evaluation.source is not None:
                yield f"data.eval.{label}.source", untransformed(evaluation.source)

    @property
    def held_out(self) -> Fraction | None:
        """The share of the documents that no training sees."""
        return next((one.share for one in self.eval.values() if one.share is not None), None)
