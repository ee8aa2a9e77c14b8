"""`data.open`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Resource, Stage
from planc.graph.ops.source_op import SourceOp
from planc.record import record


@record(kw_only=True)
class OpenData(SourceOp):
    op: Literal["data.open"] = "data.open"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs the text, and fixes the sample order."
    tokenizer: str
    """bytes, or the path of a tokenizer.json or of its directory."""
    end_of_document: str | None
    """A token; None for the tokenizer's own."""
    begin_of_document: str | None = None
    """A token, `auto` for what the tokenizer itself puts before a text, or None for nothing."""
    packing: str
    """attend, isolate, whole or none."""
    too_long: str = ""
    """For whole and none: truncate or skip."""
    sequence_length: int
    shuffle_seed: int
    vocab_size: int
    micro_batch: int
    global_batch: int
    """Sequences of one optimizer step over all ranks."""
    prefetch: int = 0
    """The number of steps whose samples are prefetched."""
    held_out: str = ""
    """The share of the documents that is left out for an evaluation, as a fraction; empty for none."""
    epochs: str = ""
    """As a fraction; empty if the plan gives steps."""
    num_sequences: int | None = None
    """The sequences from which the steps of `epochs` were computed."""
    skip_bad: int = 0
    """How many bad documents may be left out, of the training data and of each evaluation's."""

    def effects(self) -> Effects:
        sources = (Resource.SOURCE,) if self.source == "mixture" else ()
        return Effects(reads=(Resource.MESH, *sources), writes=(Resource.DATA,))
