"""Memory and work of a model's image encoder, which is not trained.

    all the time      its parameters, whole on every rank
    while it runs     of each patch its pixels, in float32 and as computed; four hidden states (the residual
                      stream, a norm of it, and what attention makes), rotated queries and keys in float32;
                      and three times the width inside of its feed-forward parts
    until backward    what it makes of each token: hidden states, and those that layers add

Forward alone computes 2 FLOPs for every weight and patch. Every rank of tp and cp does so for whole images.
"""

from __future__ import annotations

from math import prod

from planc.estimate.rank_work import RankWork
from planc.graph.ops import LoadImageEncoder, OpenImageData
from planc.graph.sources import training_data
from planc.inventory.schema import ImageEncoder
from planc.vocab import ImageShape, MeshDim

_FLOAT32 = 4


def encoder_bytes(work: RankWork) -> int:
    """The encoder's parameters; 0 for a plan without images."""
    loads = (op for op in work.graph.setup if isinstance(op, LoadImageEncoder))
    return sum(op.num_parameters * op.dtype.size_bytes for op in loads)


def image_bytes(work: RankWork) -> int:
    """The features of a micro-batch's images, which forward reads."""
    seen = _seen(work)
    if seen is None:
        return 0
    encoder, shape = seen
    tokens = training_data(work.graph).micro_batch * shape.num_tokens
    return tokens * encoder.outputs * work.inventory.hidden_size * work.model_dtype.size_bytes


def encoding_bytes(work: RankWork) -> int:
    """The most that the encoder takes while it runs, with what it makes."""
    seen = _seen(work)
    if seen is None:
        return 0
    encoder, shape = seen
    element = work.model_dtype.size_bytes
    of_patch = shape.values * (_FLOAT32 + element)
    of_patch += 4 * encoder.width * element + 2 * encoder.width * _FLOAT32 + 3 * encoder.inner * element
    return training_data(work.graph).micro_batch * shape.num_patches * of_patch + image_bytes(work)


def encoding_flops(work: RankWork) -> tuple[int, int]:
    """The FLOPs of one token's share of its image: once, and by all ranks that encode it."""
    seen = _seen(work)
    if seen is None:
        return 0, 0
    encoder, shape = seen
    once = 2 * encoder.num_parameters * shape.num_patches // training_data(work.graph).sequence_length
    return once, once * prod(work.graph.size(dim) for dim in (MeshDim.TP, MeshDim.CP))


def _seen(work: RankWork) -> tuple[ImageEncoder, ImageShape] | None:
    data, encoder = training_data(work.graph), work.inventory.images
    return (encoder, data.shape) if isinstance(data, OpenImageData) and encoder is not None else None
