"""`data.open`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.data_sources import SourceName
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class OpenData(Op):
    op: Literal["data.open"] = "data.open"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs the text, and fixes the sample order."
    source: SourceName
    patterns: tuple[str, ...]
    """Globs of files; for hf_hub, the repository."""
    field: str
    train_on: str = ""
    """For chat: assistant or all."""
    revision: str = ""
    """For hf_hub, as are split and subset."""
    split: str = ""
    subset: str | None = None
    tokenizer: str
    """bytes, or the path of a tokenizer.json or of its directory."""
    end_of_document: str | None
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
    skip_bad: int = 0
    """How many bad documents may be left out, of the training data and of each evaluation's."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.DATA,))
