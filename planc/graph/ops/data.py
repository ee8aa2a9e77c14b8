"""Ops that open a run's data and take a step's batches."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from planc.data_sources import Source
from planc.graph.consequence import DERIVED, layout, numerics, output, samples
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.record import record
from planc.vocab import NO_HEAD, Classes, MeshDim, Task


@record
class Mixture:
    """The sources that `data.open_source` ops open, by their labels, in this order."""

    labels: tuple[str, ...]
    kind: Literal["mixture"] = field(default="mixture", kw_only=True)

    def __str__(self) -> str:
        return f"mixture({', '.join(self.labels)})"


@record(kw_only=True)
class OpenSource(Op):
    op: Literal["data.open_source"] = "data.open_source"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs one source of a mixture."
    touches: ClassVar[Effects] = Effects(finds=(Resource.SOURCES,), writes=(Resource.SOURCES,))
    label: Annotated[str, samples("data.source")]
    """Its name in the plan."""
    source: Annotated[Source, samples("data.source")]
    weight: Annotated[str, samples("data.source", "data.weights")]
    """Its share as a fraction, such as 7/10; empty for as many sequences as it has."""


@record(kw_only=True)
class OpenData(Op):
    op: Literal["data.open"] = "data.open"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads, tokenizes and packs the text, and fixes the sample order."
    touches: ClassVar[Effects] = Effects(finds=(Resource.SOURCES,), writes=(Resource.DATA,))
    source: Annotated[Source | Mixture, samples("data.source")]
    tokenizer: Annotated[str, samples("data.tokenizer")]
    """bytes, or the path of a tokenizer.json or of its directory."""
    end_of_document: Annotated[str | None, samples("data.tokenizer.end_of_document", "document end")]
    """A token; None for the tokenizer's own."""
    begin_of_document: Annotated[
        str | None, samples("data.tokenizer.begin_of_document", "begin of document")
    ] = None
    """A token, `auto` for what the tokenizer itself puts before a text, or None for nothing."""
    packing: Annotated[str, samples("data.packing")]
    """attend, isolate, whole or none."""
    too_long: Annotated[str, samples("data.too_long")] = ""
    """Truncate or skip, for whole and none."""
    sequence_length: Annotated[int, samples("data.sequence_length")]
    shuffle_seed: Annotated[int, samples("data.shuffle_seed")]
    vocab_size: Annotated[int, DERIVED]
    micro_batch: Annotated[int, layout("data.micro_batch", is_in_sums=True)]
    global_batch: Annotated[int, numerics("train.tokens_per_step", "tokens/step")]
    """Sequences of one optimizer step over all ranks."""
    prefetch: Annotated[int, output("data.prefetch")] = 0
    """The number of steps whose samples are prefetched."""
    held_out: Annotated[str, samples("data.eval", "documents held out")] = ""
    """The share of the documents that is left out for an evaluation, as a fraction; empty for none."""
    epochs: Annotated[str, output("train.epochs")] = ""
    """The number of epochs as a fraction; empty if the plan gives steps."""
    num_sequences: Annotated[int | None, output("train.epochs", "sequences of an epoch")] = None
    """The sequences from which the steps of `epochs` were computed."""
    skip_bad: Annotated[int, output("data.skip_bad")] = 0
    """The most bad documents that may be left out, of the training data and of each evaluation's."""


@record(kw_only=True)
class OpenMaskedData(OpenData):
    op: Literal["data.open_masked"] = "data.open_masked"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Opens the text as `data.open`. Tokens chosen by their places are hidden, and are their own labels."
    )
    probability: Annotated[float, samples("model.task", "probability of a mask")]
    mask_replace: Annotated[float, samples("model.task", "mask_replace")]
    random_replace: Annotated[float, samples("model.task", "random_replace")]


@record(kw_only=True)
class OpenLabeledData(OpenData):
    op: Literal["data.open_labeled"] = "data.open_labeled"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Opens texts, or pairs of them, as `data.open`, one a sequence, each with its class or with those of "
        "its words."
    )
    num_labels: Annotated[int, samples("model.task", "labels")]
    names: Annotated[tuple[str, ...], samples("model.task", "names of classes")] = ()
    padding_id: Annotated[int | None, samples("model.hf", "padding")]
    """The token after a text; None for the end of a document."""
    by_word: Annotated[bool, samples("model.task", "classes of words")] = False
    """Whether each word of a text has a class, at its first token; else the text has one."""
    token_types: Annotated[int, samples("model.hf", "token types")] = 0
    """The number of types, `token_type_ids`, that the model is given with pairs of texts; 0 for none."""

    @property
    def classes(self) -> Classes:
        """The classes with the task that they are of."""
        task = Task.TOKEN_CLASSIFICATION if self.by_word else Task.SEQUENCE_CLASSIFICATION
        return Classes(task, self.num_labels)


@record(kw_only=True)
class OpenMatchedData(OpenData):
    op: Literal["data.open_matched"] = "data.open_matched"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Opens pairs of texts that belong together as `data.open`, one text a sequence, a query before its "
        "positive."
    )
    padding_id: Annotated[int | None, samples("model.hf", "padding")]
    """The token after a text; None for the end of a document."""
    classes: ClassVar[Classes] = NO_HEAD


@record(kw_only=True)
class OpenMappedData(OpenData):
    op: Literal["data.open_mapped"] = "data.open_mapped"  # type: ignore[assignment]
    summary: ClassVar[str] = (
        "Opens inputs with their targets as `data.open`, one of each a sequence: the labels are the target's "
        "tokens."
    )
    padding_id: Annotated[int, samples("model.hf", "padding")]
    """The token after an input, and after what the decoder is given of a target."""
    start_id: Annotated[int, samples("model.hf", "first token of a decoder")]
    """The token that a decoder is given before a target."""


@record(kw_only=True)
class OpenTeacher(Op):
    op: Literal["data.open_teacher"] = "data.open_teacher"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = (
        "Opens a teacher's stored log-probabilities, which must be of this data; a step reads those of its "
        "own sequences."
    )
    touches: ClassVar[Effects] = Effects(reads=(Resource.DATA,), writes=(Resource.DATA,))
    teacher: Annotated[str, numerics("train.loss", "teacher")]
    """The teacher's directory, or its name on the Hub."""
    top_k: Annotated[int, numerics("train.loss", "top_k")]
    """The number of tokens that are stored at each position."""
    path: Annotated[str, output("train.loss", "stored logits")]
    row_bytes: ClassVar[int] = 8
    """A token's id in 4 bytes, and its log-probability in 4."""


@record(kw_only=True)
class OpenEvaluation(Op):
    op: Literal["data.open_evaluation"] = "data.open_evaluation"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = "Reads evaluation data in the same way as training data."
    touches: ClassVar[Effects] = Effects(
        finds=(Resource.EVALUATION_SETS,), writes=(Resource.EVALUATION_SETS,)
    )
    label: Annotated[str, output("data.eval", "evaluations")]
    """Its name in the plan."""
    source: Annotated[Source, output("data.eval", "evaluations")]
    share: Annotated[str, output("data.eval", "evaluations")] = ""
    """The share of the training documents that it is, as a fraction; empty for a source of its own."""
    sequences: Annotated[int | None, output("data.eval", "evaluations")]
    """The number of sequences, from the first; None for all."""


@record(kw_only=True)
class NextBatch(Op):
    op: Literal["batch.next"] = "batch.next"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.DATA
    summary: ClassVar[str] = (
        "Takes this rank's micro-batches of the step, and counts the step's target tokens over all ranks "
        "unless every token is one."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.DATA),
        writes=(Resource.DATA, Resource.BATCH, Resource.TOKENS, Resource.STEP_LOSS, Resource.EVALUATIONS),
    )
    count_over: Annotated[tuple[MeshDim, ...], DERIVED]
    is_every_token: Annotated[bool, DERIVED] = False
    """Whether every token is a target: then ranks know their number without the others."""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return self.count_over


@record(kw_only=True)
class ShardContext(Op):
    op: Literal["cp.shard"] = "cp.shard"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.DATA
    summary: ClassVar[str] = "Takes one micro-batch and this rank's shard of every sequence in it."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.BATCH,), finds=(Resource.DOCUMENTS,), writes=(Resource.LOCAL_BATCH,)
    )
    balance: Annotated[str, layout("context_parallel", "sequence tensors")]
    buffers: Annotated[tuple[tuple[str, int], ...], layout("context_parallel", "sequence tensors")]
    """Sequence tensors and their sharded dimension."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    first_position: Annotated[int | None, numerics("model.hf", "first position")] = None
    """The first position of a sequence, if the model's is not 0."""
    uncounted_token: Annotated[int | None, numerics("model.hf", "first position")] = None
    """The id of tokens that do not advance the position and get the position before the first."""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return ()
