"""The ops of a task with images."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import EncodeImages, LoadImageEncoder
from planc.inventory.schema import ImageEncoder
from planc.plan.bind import BoundPlan
from planc.plan.task import ImageTextToText
from planc.vocab import ImageShape


def load_image_encoder(bound: BoundPlan) -> Iterator[LoadImageEncoder]:
    """The op that reads the encoder, if the plan trains on images."""
    for encoder, _ in _seen(bound):
        yield LoadImageEncoder(
            path=bound.plan.model.hf,
            strip=bound.plan.model.strip,
            dtype=bound.plan.model.dtype,
            num_parameters=encoder.num_parameters,
            span=bound.plan.span("model.task"),
        )


def encode_images(bound: BoundPlan) -> Iterator[EncodeImages]:
    """The op that encodes a micro-batch's images, if it has any."""
    for encoder, shape in _seen(bound):
        yield EncodeImages(token=encoder.token, shape=shape, span=bound.plan.span("model.task"))


def _seen(bound: BoundPlan) -> Iterator[tuple[ImageEncoder, ImageShape]]:
    task, encoder = bound.plan.model.task, bound.inventory.images
    if isinstance(task, ImageTextToText) and encoder is not None:
        yield encoder, encoder.shape(height=task.height, width=task.width)
