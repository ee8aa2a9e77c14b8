"""The data settings of a graph's ops."""

from __future__ import annotations

from typing import Any

from planc.graph import ops
from planc.graph.sources import AnySource
from planc.runtime.data.spec import DataSpec, HeldOut, Images, Masking

_PADDED = ops.OpenLabeledData | ops.OpenMatchedData | ops.OpenMappedData


def data_spec(op: AnySource, *, training: ops.OpenData) -> DataSpec:
    """The data that an op reads, with the settings of the training data."""
    assert not isinstance(op.source, ops.Mixture), "a mixture has ops that read its sources"
    labeled = training if isinstance(training, ops.OpenLabeledData) else None
    packing: Any = training.packing
    too_long: Any = training.too_long or "truncate"
    held_out: HeldOut | None = None
    if isinstance(op, ops.OpenEvaluation):
        held_out = HeldOut(op.share, is_kept=True) if op.share else None
    elif training.held_out:
        held_out = HeldOut(training.held_out, is_kept=False)
    return DataSpec(
        source=op.source,
        tokenizer=training.tokenizer,
        sequence_length=training.sequence_length,
        shuffle_seed=training.shuffle_seed,
        packing=packing,
        end_of_document=training.end_of_document,
        begin_of_document=training.begin_of_document,
        skip_bad=training.skip_bad,
        too_long=too_long,
        held_out=held_out,
        masking=masking_of(training),
        padding_id=training.padding_id if isinstance(training, _PADDED) else None,
        token_types=labeled.token_types if labeled else 0,
        images=Images(training.path, training.token, training.shape)
        if isinstance(training, ops.OpenImageData)
        else None,
    )


def masking_of(op: ops.OpenData) -> Masking | None:
    """The settings by which tokens are hidden; None for causal language models."""
    if not isinstance(op, ops.OpenMaskedData):
        return None
    return Masking(op.probability, op.mask_replace, op.random_replace)
