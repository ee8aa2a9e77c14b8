"""`data.open`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class OpenData(Op):
    op: Literal["data.open"] = "data.open"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs the text, and fixes the sample order."
    source: str
    """text, jsonl or python_stdlib."""
    patterns: tuple[str, ...]
    field: str
    tokenizer: str
    """bytes, or the path of a tokenizer.json."""
    end_of_document: str | None
    packing: str
    sequence_length: int
    shuffle_seed: int
    vocab_size: int
    micro_batch: int
    global_batch: int
    """Sequences of one optimizer step over all ranks."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.DATA,))
