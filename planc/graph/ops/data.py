"""Ops that open a run's data and take a step's batches."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.data_sources import SourceName
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class SourceOp(Op):
    """A source and its arguments; those of other kinds are empty."""

    source: SourceName | Literal["mixture"]
    """`mixture` is that of all `data.open_source` ops."""
    patterns: tuple[str, ...]
    """Globs of files; for hf_hub, the repository."""
    field: str | None
    """None for the keys that conversations usually have."""
    train_on: str = ""
    """For chat: answers, last_answer or all."""
    thinking: str = ""
    """For chat: last or all."""
    template: str = ""
    """For chat: auto, none, or a file."""
    date: str | None = None
    ignore: tuple[str, ...] = ()
    """For chat: keys of rows that are not read."""
    revision: str = ""
    """For hf_hub, as are split and subset."""
    split: str = ""
    subset: str | None = None


@record(kw_only=True)
class OpenSource(SourceOp):
    op: Literal["data.open_source"] = "data.open_source"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs one source of a mixture."
    label: str
    """Its name in the plan."""
    weight: str
    """As a fraction, such as 7/10; empty for as many sequences as it has."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.SOURCE,))


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


@record(kw_only=True)
class OpenEvaluation(SourceOp):
    op: Literal["data.open_evaluation"] = "data.open_evaluation"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads evaluation data in the same way as training data."
    label: str
    """Its name in the plan."""
    share: str = ""
    """The share of the training documents that it is, as a fraction; empty for a source of its own."""
    sequences: int | None
    """The number of sequences, from the first; None for all."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.DATA,), writes=(Resource.EVALUATION,))


@record(kw_only=True)
class NextBatch(Op):
    op: Literal["batch.next"] = "batch.next"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "Takes this rank's micro-batches of the step, and counts the step's target tokens over all ranks "
        "unless every token is one."
    )
    count_over: tuple[MeshDim, ...]
    is_every_token: bool = False
    """Whether every token is a target: then ranks know their number without the others."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.DATA,), writes=(Resource.DATA, Resource.BATCH), communicates=self.count_over
        )


@record(kw_only=True)
class ShardContext(Op):
    op: Literal["cp.shard"] = "cp.shard"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Takes one micro-batch and this rank's shard of every sequence in it."
    balance: str
    buffers: tuple[tuple[str, int], ...]
    """Sequence tensors and their sharded dimension."""
    over: tuple[MeshDim, ...]
    first_position: int | None = None
    """The first position of a sequence, if the model's is not 0."""
    uncounted_token: int | None = None
    """The id of tokens that do not advance the position and get the position before the first."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.BATCH,), writes=(Resource.LOCAL_BATCH,))
