"""The images of a micro-batch: encoded by the model's own encoder, which is not trained."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from planc.graph.ops import EncodeImages, OpenImageData, ShardContext
from planc.modeling.language_part import EncodedImages, encoded, image_positions
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.sharding import shard
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Batch, Data, ImageEncoder, Images, Sources
from planc.runtime.torch.training.batches import open_data


def open_image_data(
    run: Run, op: OpenImageData, sources: Sources | None, encoder: ImageEncoder
) -> Data | None:
    """Open data as others are; a run that resumes must have the same encoder, which no checkpoint has."""
    data: Data | None = open_data(run, op, sources)
    if data is None:
        return None
    both = hashlib.sha256(f"{data.fingerprint} {encoder.digest}".encode()).hexdigest()
    return replace(data, fingerprint=both)


def encode_images(run: Run, op: EncodeImages, at: Position, batch: Batch, encoder: ImageEncoder) -> Images:
    """Encode this micro-batch's images, and place them among its tokens."""
    own = batch.micro_batches[at.micro_step]
    assert own.pixels is not None, "data of images has some for each sequence"
    pixels = run.to_device(torch.from_numpy(own.pixels))
    with torch.no_grad():
        features = encoded(encoder.module, pixels.to(next(encoder.module.parameters()).dtype), op.shape)
    return placed(run, op, own.inputs, features)


def placed(run: Run, op: EncodeImages, inputs: npt.NDArray[np.int64], features: EncodedImages) -> Images:
    """The images of tokens [B, S], with what this rank has of their places and positions."""
    places, positions = image_positions(torch.from_numpy(inputs), token=op.token, shape=op.shape)
    (context,) = (op for op in run.graph.ops() if isinstance(op, ShardContext))
    for mesh_dim in context.over:
        parts, index, balance = run.graph.size(mesh_dim), run.coordinate(mesh_dim), context.balance
        part = partial(shard, parts=parts, index=index, balance=balance)  # type: ignore[arg-type]
        places, positions = part(places, tensor_dim=1), part(positions, tensor_dim=2)
    return Images(features, run.to_device(places), run.to_device(positions))
