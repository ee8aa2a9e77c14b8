"""The data of a small model in the place of a plan's own."""

from __future__ import annotations

from dataclasses import replace

from planc.graph import ops
from planc.graph.ops import OpenData
from planc.verify.recipe import SEQUENCE_LENGTH, Recipe, small_micro_batch


def given_tokens(op: OpenData, recipe: Recipe, *, padding: int | None, start: int | None) -> OpenData:
    """The op with the tokens of the small model that no text has, and its images."""
    match op:
        case ops.OpenLabeledData() | ops.OpenMatchedData():
            return replace(op, padding_id=padding)
        case ops.OpenMappedData():
            assert padding is not None and start is not None, "an encoder-decoder has both"
            return replace(op, padding_id=padding, start_id=start)
        case ops.OpenImageData():
            images = recipe.data.images
            assert images is not None, "the small model sees images too"
            return replace(op, path=images.path, token=images.token, shape=images.shape)
        case _:
            return op


def short_data(op: OpenData, recipe: Recipe, times: int, vocab_size: int) -> OpenData:
    """The op with `times` micro-batches per step."""
    micro_batch = small_micro_batch(op.micro_batch, recipe.loss)
    return replace(
        op,
        source=recipe.data.source,
        tokenizer="bytes",
        end_of_document=None,
        held_out="",
        epochs="",
        begin_of_document=None,
        sequence_length=min(SEQUENCE_LENGTH, op.sequence_length),
        vocab_size=vocab_size,
        micro_batch=micro_batch,
        global_batch=micro_batch * times,
    )
