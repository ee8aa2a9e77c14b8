"""The data sources of a plan as ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

from planc.data_sources import Source
from planc.data_sources.kinds import ExtensionSource, TransformedSource
from planc.extend.reference import Extension
from planc.graph import ops
from planc.inventory.schema import ImageEncoder
from planc.plan import data
from planc.plan.conversations import Chat, Pairs
from planc.plan.facts import global_batch
from planc.plan.spec import Plan
from planc.plan.task import (
    AnyTask,
    CausalLm,
    Classification,
    Embedding,
    ImageTextToText,
    MaskedLm,
    Seq2SeqLm,
    SequenceClassification,
)
from planc.vocab import SAMPLE_DIMS


def open_data(
    plan: Plan,
    *,
    vocab_size: int = 0,
    padding_id: int | None = None,
    start_id: int | None = None,
    token_types: int = 0,
    images: ImageEncoder | None = None,
) -> ops.OpenData:
    """The training data."""
    block = plan.data
    tokenizer, end, begin = "bytes", None, None
    if isinstance(block.tokenizer, data.FileTokenizer):
        tokenizer = block.tokenizer.path
        end, begin = block.tokenizer.end_of_document, block.tokenizer.begin_of_document
    opened = ops.OpenData(
        source=ops.Mixture(tuple(block.mixture))
        if block.source is None
        else source_of(block.source, plan.model.task),
        tokenizer=tokenizer,
        end_of_document=end,
        begin_of_document=begin,
        packing=block.packing,
        too_long=block.too_long or "",
        sequence_length=block.sequence_length,
        shuffle_seed=block.shuffle_seed,
        vocab_size=vocab_size,
        micro_batch=block.micro_batch,
        global_batch=global_batch(plan),
        prefetch=block.prefetch,
        skip_bad=block.skip_bad,
        held_out="" if block.held_out is None else str(block.held_out),
        epochs="" if plan.train.epochs is None else str(plan.train.epochs),
        num_sequences=plan.num_sequences,
        span=plan.span("data.source"),
    )
    values = {field.name: getattr(opened, field.name) for field in fields(opened) if field.name != "op"}
    match plan.model.task:
        case MaskedLm() as task:
            return ops.OpenMaskedData(
                **values,
                probability=task.probability,
                mask_replace=task.mask_replace,
                random_replace=task.random_replace,
            )
        case Classification() as task:
            values |= {"padding_id": padding_id, "token_types": token_types}
            return ops.OpenLabeledData(**values, **_of_classes(task))
        case Embedding():
            return ops.OpenMatchedData(**values, padding_id=padding_id)
        case Seq2SeqLm():
            return ops.OpenMappedData(**values, padding_id=padding_id or 0, start_id=start_id or 0)
        case ImageTextToText(height, width) if images is not None:
            shape = images.shape(height=height, width=width)
            return ops.OpenImageData(**values, path=plan.model.hf, token=images.token, shape=shape)
        case _:
            return opened


def open_sources(plan: Plan) -> Iterator[ops.OpenSource]:
    """The sources of a mixture, in the plan's order, with their shares: 7 and 3 are 7/10 and 3/10."""
    whole = sum(one.weight or 0 for one in plan.data.mixture.values())
    for label, mixed in plan.data.mixture.items():
        yield ops.OpenSource(
            label=label,
            source=source_of(mixed.source, plan.model.task),
            weight="" if mixed.weight is None else str(mixed.weight / whole),
            span=plan.span(f"data.source.{label}"),
        )


def next_batch(plan: Plan) -> ops.NextBatch:
    """Build the op; if every token is a label, no rank needs to wait for the others' counts."""
    block, span = plan.data, plan.span("data")
    is_causal = isinstance(plan.model.task, CausalLm)
    # What an extension returns may be messages, or have labels of its own.
    has_unlabeled = any(isinstance(source, Chat | Pairs | Extension) for _, source in block.training())
    if block.packing is not data.Packing.ATTEND or has_unlabeled or not is_causal:
        return ops.NextBatch(count_over=SAMPLE_DIMS, span=span)
    return ops.NextBatch(count_over=(), is_every_token=True, span=span)


def open_evaluations(plan: Plan) -> Iterator[ops.OpenEvaluation]:
    """The evaluation data, in the plan's order: of a share, one for each source of the training data."""
    for label, name, source in evaluations(plan):
        evaluation = plan.data.eval[name]
        yield ops.OpenEvaluation(
            label=label,
            source=source_of(source, plan.model.task),
            share="" if evaluation.share is None else str(evaluation.share),
            sequences=evaluation.sequences,
            span=plan.span(f"data.eval.{name}.{'source' if evaluation.share is None else 'share'}"),
        )


def evaluations(plan: Plan) -> Iterator[tuple[str, str, data.AnySource]]:
    """The label of each evaluation, the name of its block, and its source."""
    block = plan.data
    for name, evaluation in block.eval.items():
        if evaluation.source is not None:
            yield name, name, evaluation.source
        elif block.source is not None:
            yield name, name, block.source
        else:
            yield from ((f"{name}.{label}", name, one.source) for label, one in block.mixture.items())


def _of_classes(task: Classification) -> dict[str, Any]:
    return {"num_labels": task.labels, "names": task.names, "by_word": task.by_word}


def source_of(source: data.AnySource, task: AnyTask) -> Source:
    """A source as an op has it, with the classes that the task has."""
    if isinstance(source, Extension):
        return ExtensionSource(source)
    if isinstance(source, data.Transformed):
        rows: Any = source_of(source.source, task)
        return TransformedSource(rows, source.by)
    kind = data.source_kind(source)
    arguments = {name: getattr(source, name) for name in kind.argument_names() if hasattr(source, name)}
    if isinstance(source, data.Labeled):
        known = task if isinstance(task, Classification) else SequenceClassification(labels=1, names=())
        arguments |= _of_classes(known)
    if "template" in arguments:
        arguments["template"] = arguments["template"] or "none"
    if "train_on_end_of_turn" in arguments:
        arguments["train_on_end_of_turn"] = str(arguments["train_on_end_of_turn"]).lower()
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in arguments.items()}
    found: Source = kind(**plain)  # type: ignore[assignment]  # of the union's kinds
    return found
