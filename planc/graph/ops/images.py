"""Ops that read images, and encode them for the model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, numerics, samples
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.graph.ops.data import OpenData
from planc.record import record
from planc.vocab import DType, ImageShape


@record(kw_only=True)
class LoadImageEncoder(Op):
    op: Literal["images.load_encoder"] = "images.load_encoder"
    stage: ClassVar[Stage] = Stage.LOAD
    summary: ClassVar[str] = (
        "Reads the model's encoder of images from its files: whole on every rank, and not trained."
    )
    touches: ClassVar[Effects] = Effects(writes=(Resource.IMAGE_ENCODER,))
    path: Annotated[str, numerics("model.hf", "image encoder")]
    strip: Annotated[str | None, DERIVED]
    dtype: Annotated[DType, DERIVED]
    num_parameters: Annotated[int, DERIVED]


@record(kw_only=True)
class OpenImageData(OpenData):
    op: Literal["data.open_images"] = "data.open_images"  # type: ignore[assignment]
    summary: ClassVar[str] = "Opens conversations as `data.open`, each with the image that it has."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.IMAGE_ENCODER,), finds=(Resource.SOURCES,), writes=(Resource.DATA,)
    )
    path: Annotated[str, DERIVED]
    """The directory of preprocessor_config.json, by which pixels become the encoder's inputs."""
    token: Annotated[int, samples("model.hf", "token of images")]
    """The token in whose place a sequence has an image's tokens."""
    shape: Annotated[ImageShape, samples("model.task", "size of images")]


@record(kw_only=True)
class EncodeImages(Op):
    op: Literal["images.encode"] = "images.encode"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.FORWARD
    summary: ClassVar[str] = (
        "Encodes the images of a micro-batch without gradients, and places them among the tokens: every rank "
        "of a sequence does so for all of it."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.BATCH, Resource.IMAGE_ENCODER), writes=(Resource.IMAGES,)
    )
    token: Annotated[int, samples("model.hf", "token of images")]
    shape: Annotated[ImageShape, samples("model.task", "size of images")]
