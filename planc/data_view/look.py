"""A look at a part of the data: its first rows, and the statistics of a sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planc.data_view.parts import Part
from planc.data_view.shown import WHOLE, Shown, shown_documents
from planc.runtime.data.bad_documents import Faults
from planc.runtime.data.chat import AnyDocument
from planc.runtime.data.dataset import Dataset, packed
from planc.runtime.data.documents import spec_documents
from planc.runtime.data.encoding.client import Fault, Tokens
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import Encoded, encode
from planc.runtime.data.sampling import Sampling
from planc.runtime.data.tally import Tally
from planc.runtime.data.tokenizers import Tokenizer

NUM_ROWS = 3


@dataclass(slots=True)
class _Recorder:
    """A tokenizer whose results are kept: asked again for the same documents, it repeats them."""

    tokenizer: Tokenizer
    found: list[Tokens | Fault] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.tokenizer.name

    @property
    def digest(self) -> str:
        return self.tokenizer.digest

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def end_of_document(self) -> int:
        return self.tokenizer.end_of_document

    @property
    def after(self) -> tuple[int, ...]:
        return self.tokenizer.after

    @property
    def mask_id(self) -> int | None:
        return self.tokenizer.mask_id

    @property
    def special_ids(self) -> frozenset[int]:
        return self.tokenizer.special_ids

    @property
    def marks(self) -> str:
        return self.tokenizer.marks

    def encode(self, documents: Iterable[AnyDocument]) -> Iterator[Tokens | Fault]:
        if self.found:
            yield from (found for found, _ in zip(self.found, documents, strict=True))
            return
        for one in self.tokenizer.encode(documents):
            self.found.append(one)
            yield one

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.tokenizer.decode(sequences)

    def close(self) -> None:
        self.tokenizer.close()


@dataclass(frozen=True)
class Look:
    """A sample of a part. Not slotted, because it is counted once."""

    part: Part
    sampling: Sampling
    documents: Sequence[AnyDocument]
    """The sample's rows before they are tokenized: those that can't be are among them."""
    encoded: Sequence[Encoded]
    faults: Sequence[DataError]
    rows: Sequence[Shown]
    """The first rows."""
    dataset: Dataset | None
    """The sample as sequences; None if it fills none."""
    end_of_document: str
    special_ids: frozenset[int]
    marks: str
    """The words for what the tokenizer puts around documents and turns."""

    @cached_property
    def tally(self) -> Tally:
        found = Tally()
        for one in self.encoded:
            found.add(one)
        return found

    @property
    def num_too_long(self) -> int:
        """Documents that a sequence can't hold, where documents are kept whole."""
        spec = self.part.wanted.spec
        return self.tally.num_longer(spec.room) if spec.packing in WHOLE else 0

    @property
    def sequences_per_epoch(self) -> int | None:
        """The number of sequences of all the data, scaled up from the sample; None if unknown."""
        sampling = self.sampling
        if self.dataset is None or not sampling.num_read_bytes:
            return None
        if sampling.is_whole:
            return self.dataset.num_sequences
        if sampling.num_bytes == float("inf"):
            return None
        return round(self.dataset.num_sequences * sampling.num_bytes / sampling.num_read_bytes)

    def data(self) -> dict[str, Any]:
        """The statistics as JSON."""
        tally = self.tally
        return {
            "sample": str(self.sampling),
            "is_whole": self.sampling.is_whole,
            "documents": tally.num_documents,
            "tokens": tally.num_tokens,
            "labels": tally.num_targets,
            "lengths": {name: tally.quantile(share) for name, share in QUANTILES.items()},
            "empty": tally.num_empty,
            "without_labels": tally.num_unlabeled,
            "too_long": self.num_too_long,
            "unusable": len(self.faults),
            "sequences_per_epoch": self.sequences_per_epoch,
            "longest": [{"source": origin, "tokens": length} for length, origin in tally.longest],
        }


QUANTILES = {"shortest": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}


def look(part: Part, *, num_rows: int = NUM_ROWS) -> Look:
    """Tokenize a sample of a part. Raises DataError for what no row of the source is to blame for."""
    wanted, faults, sampling = part.wanted, Faults(), Sampling()
    documents = list(spec_documents(wanted.spec, base=wanted.base, bad=faults, sample=sampling))
    with contextlib.closing(wanted.tokenizer.load(num_processes=1)) as tokenizer:
        recorder = _Recorder(tokenizer)
        encoded = list(encode(documents, tokenizer=recorder, bad=faults, images=wanted.spec.images))
        spec = wanted.spec
        rows = shown_documents(encoded[:num_rows], spec=spec, tokenizer=tokenizer)
        (end,) = tokenizer.decode([[tokenizer.end_of_document]])
        return Look(
            part,
            sampling,
            documents,
            encoded,
            tuple(faults.errors),
            rows,
            _sequences(documents, part, tokenizer=recorder),
            end,
            tokenizer.special_ids,
            tokenizer.marks,
        )


def _sequences(documents: Sequence[AnyDocument], part: Part, *, tokenizer: Tokenizer) -> Dataset | None:
    try:
        return packed(documents, part.wanted.spec, tokenizer=tokenizer, bad=Faults())
    except DataError:
        # Findings report why; a part of the data may fill no sequence though all of it does.
        return None
