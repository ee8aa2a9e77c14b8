"""The values of a graph that decide which samples a run sees, and in which order."""

from __future__ import annotations

from planc.diff.difference import Group
from planc.diff.fact import Fact, of_op
from planc.diff.side import Side
from planc.figures.plan import tokens_per_step
from planc.graph.ops import Accumulate, AttachAttention, Evaluate, OpenData, OpenEvaluation, OpenSource
from planc.graph.sources import AnySource
from planc.tables import every_step, plural


def _tokens_per_step(side: Side) -> int | None:
    return tokens_per_step(side.graph).count if side.op(OpenData) else None


def _source(side: Side) -> str | None:
    mixed = (f"{op.label}: {_written_source(op)}" for op in side.ops(OpenSource))
    data = side.op(OpenData)
    return "; ".join(mixed) or (_written_source(data) if data else None)


def _weights(side: Side) -> str | None:
    """The shares of a mixture's sources."""
    mixed = tuple(side.ops(OpenSource))
    return ", ".join(f"{op.label} {op.weight or 'by size'}" for op in mixed) or None


def _held_out(side: Side) -> str | None:
    data = side.op(OpenData)
    return (data.held_out or None) if data else None


def _written_source(op: AnySource) -> str:
    """A source with all of its options."""
    said = {"field": op.field, "train_on": op.train_on, "revision": op.revision, "split": op.split}
    said |= {"subset": op.subset, "thinking": op.thinking, "template": op.template, "date": op.date}
    said["ignore"] = ", ".join(op.ignore)
    options = (f"{name} {value}" for name, value in said.items() if value)
    return f"{op.source}({', '.join((*op.patterns, *options))})"


def evaluations(side: Side) -> str | None:
    """Each evaluation's source, size, and interval."""
    every = {op.label: op.every_steps for op in side.ops(Evaluate)}
    found = (
        f"{op.label}: {f'{op.share} of ' if op.share else ''}{_written_source(op)}, "
        f"{plural(op.sequences, 'sequence') if op.sequences else 'all sequences'}, "
        f"{every_step(every[op.label])}"
        for op in side.ops(OpenEvaluation)
    )
    return "; ".join(found) or None


def _tokenizer(side: Side) -> str | None:
    data = side.op(OpenData)
    if data is None:
        return None
    end = f", end of document {data.end_of_document}" if data.end_of_document else ""
    begin = f", begin of document {data.begin_of_document}" if data.begin_of_document else ""
    return f"{data.tokenizer}{begin}{end}"


BATCH_FACTS: tuple[Fact, ...] = (
    Fact(
        Group.BATCH, "tokens/step", "train.tokens_per_step", _tokens_per_step, "tokens_per_step", is_key=True
    ),
    Fact(Group.BATCH, "gradient_accumulation", "", of_op(Accumulate, "times"), "gradient_accumulation"),
    Fact(Group.BATCH, "sequences/step", "", of_op(OpenData, "global_batch"), "sequences_per_step"),
    Fact(Group.BATCH, "data.micro_batch", "data.micro_batch", of_op(OpenData, "micro_batch")),
    Fact(Group.BATCH, "data.sequence_length", "data.sequence_length", of_op(OpenData, "sequence_length")),
    Fact(Group.BATCH, "data.source", "data.source", _source),
    Fact(Group.BATCH, "data.weights", "data.source", _weights),
    Fact(Group.BATCH, "documents held out", "data.eval", _held_out),
    Fact(Group.BATCH, "data.tokenizer", "data.tokenizer", _tokenizer),
    Fact(Group.BATCH, "data.packing", "data.packing", of_op(OpenData, "packing")),
    Fact(Group.BATCH, "data.too_long", "data.too_long", of_op(OpenData, "too_long")),
    Fact(Group.BATCH, "documents isolated", "data.packing", of_op(AttachAttention, "isolates")),
    Fact(Group.BATCH, "data.shuffle_seed", "data.shuffle_seed", of_op(OpenData, "shuffle_seed")),
)

DATA_STATE = (
    "data.source",
    "data.weights",
    "documents held out",
    "data.tokenizer",
    "data.packing",
    "data.too_long",
    "data.sequence_length",
    "data.shuffle_seed",
)
"""The facts that the data fingerprint in a checkpoint covers: a change in any means different data."""
