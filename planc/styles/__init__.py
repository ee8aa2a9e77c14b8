"""Tensor-parallel styles as data: one file per style, registered in one tuple."""

from planc.styles.colwise import COLWISE, COLWISE_GATHER_OUTPUT
from planc.styles.embedding import EMBEDDING_COLWISE, EMBEDDING_ROWWISE
from planc.styles.experts import MOE_TP_EXPERTS
from planc.styles.latent_attention import MLA_KV_A_PROJ
from planc.styles.local_params import LOCAL_PARAMS
from planc.styles.packed_colwise import PACKED_COLWISE
from planc.styles.prepare_input import PREPARE_INPUT, PREPARE_INPUT_OUTPUT
from planc.styles.replicate import REPLICATE, REPLICATED_WITH_GRAD_ALLREDUCE
from planc.styles.replicated_kv import REPLICATED_KV
from planc.styles.rowwise import ROWWISE, ROWWISE_SPLIT_INPUT
from planc.styles.sequence_parallel import SEQUENCE_PARALLEL
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
