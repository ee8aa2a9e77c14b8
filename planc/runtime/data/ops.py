"""The data settings of a graph's ops."""

from __future__ import annotations

from typing import Any

from planc.graph.ops import OpenData
from planc.graph.sources import AnySource, source_arguments
from planc.runtime.data.spec import SOURCES, DataSpec, Source


def data_spec(op: OpenData, *, source: Source) -> DataSpec:
    """The spec for a source, with the op's own settings."""
    packing: Any = op.packing
    too_long: Any = op.too_long or "truncate"
    return DataSpec(
        source=source,
        tokenizer=op.tokenizer,
        sequence_length=op.sequence_length,
        shuffle_seed=op.shuffle_seed,
        packing=packing,
        end_of_document=op.end_of_document,
        skip_bad=op.skip_bad,
        too_long=too_long,
    )


def source_of(op: AnySource) -> Source:
    """The source that an op names."""
    return SOURCES[op.source](**source_arguments(op))
