"""Tensor-parallel styles as data: those of linear layers and of other modules, in one tuple."""

from planc.styles.linear import (
    COLWISE,
    COLWISE_GATHER_OUTPUT,
    MLA_KV_A_PROJ,
    PACKED_COLWISE,
    REPLICATED_KV,
    ROWWISE,
    ROWWISE_SPLIT_INPUT,
)
from planc.styles.modules import (
    EMBEDDING_COLWISE,
    EMBEDDING_ROWWISE,
    LOCAL_PARAMS,
    MOE_TP_EXPERTS,
    PREPARE_INPUT,
    PREPARE_INPUT_OUTPUT,
    REPLICATE,
    REPLICATED_WITH_GRAD_ALLREDUCE,
    SEQUENCE_PARALLEL,
)
from planc.styles.style import Boundary, Style, StyleUse

STYLES: tuple[Style, ...] = (
    COLWISE,
    COLWISE_GATHER_OUTPUT,
    PACKED_COLWISE,
    ROWWISE,
    ROWWISE_SPLIT_INPUT,
    EMBEDDING_ROWWISE,
    EMBEDDING_COLWISE,
    SEQUENCE_PARALLEL,
    PREPARE_INPUT,
    PREPARE_INPUT_OUTPUT,
    MOE_TP_EXPERTS,
    MLA_KV_A_PROJ,
    REPLICATED_KV,
    LOCAL_PARAMS,
    REPLICATE,
    REPLICATED_WITH_GRAD_ALLREDUCE,
)

BY_NAME: dict[str, Style] = {style.name: style for style in STYLES}

__all__ = ["BY_NAME", "STYLES", "Boundary", "Style", "StyleUse"]
