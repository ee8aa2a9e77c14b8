"""Images among tokens, and the values of their pixels that an encoder is given."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.hub.model_config import PATCH_SIZES
from planc.hub.model_config import PREPROCESSOR as PREPROCESSOR
from planc.runtime.data.columns import Columns
from planc.runtime.data.encoding.client import Ids
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.data.image_files import decoded, require_pillow
from planc.runtime.data.spec import Images
from planc.runtime.ranks.reads import Reads
from planc.strict_json import loads
from planc.vocab import ImageShape

Flags = npt.NDArray[np.bool_]
_BYTE, _POSITION = np.dtype(np.uint8), np.dtype(np.int64)


IMAGE_HELP = "use the model's own tokenizer and chat template, and no text that has this token"


def image_fault(ids: Ids, images: Images, *, leads: bool) -> str | None:
    """The reason that tokens have no place for an image, which may lead them; None if they have."""
    number = int((ids == images.token).sum())
    if number == 1 or (leads and not number):
        return None
    return f"has the token {images.token} {number} times, and an image is in the place of 1"


def with_image(ids: Ids, is_target: Flags, images: Images) -> tuple[Ids, Flags, int]:
    """The tokens with those of an image in the place of the one, or before all; which of them may be labels;
    and the number of tokens up to the last of the image."""
    places, number = np.flatnonzero(ids == images.token), images.shape.num_tokens
    first = int(places[0]) if len(places) else 0
    rest = first + len(places)
    shown = np.concatenate((ids[:first], np.full(number, images.token), ids[rest:]))
    flags = np.concatenate((is_target[:first], np.zeros(number, dtype=bool), is_target[rest:]))
    return shown, flags, first + number


class ImageColumns:
    """Writes the content of images end to end, and where each starts."""

    def __init__(self, columns: Columns) -> None:
        self._images = columns.column("images", dtype=_BYTE)
        self._starts = columns.column("image_starts", dtype=_POSITION)
        self._starts.append(np.zeros(1, dtype=_POSITION))
        self._num_bytes = 0

    def add(self, content: bytes) -> None:
        self._images.append(np.frombuffer(content, dtype=_BYTE))
        self._num_bytes += len(content)
        self._starts.append(np.array([self._num_bytes], dtype=_POSITION))


class Preprocessor:
    """The way from an image's file to the values of its patches, by the settings of a model's directory.

    DataError without settings, or with others than the encoder's.
    """

    def __init__(self, folder: Path, *, name: str, shape: ImageShape, reads: Reads | None = None) -> None:
        require_pillow()
        path = folder / PREPROCESSOR
        if not path.is_file():
            help = "copy the model's own there: it has the mean and the range of pixels"
            raise DataError(f"{name} has no {PREPROCESSOR}, by which images are read", help=help)
        content = read_regular_file(path, name=f"{name}/{PREPROCESSOR}", reads=reads)
        _require_shape(content, shape, name=f"{name}/{PREPROCESSOR}")
        self.digest = hashlib.sha256(content).hexdigest()
        self._folder, self._shape = folder, shape
        self._processor: Any = None

    def patches(self, content: bytes, *, name: str) -> npt.NDArray[np.float32]:
        """The values [patches, values of each] of an image, scaled to the shape. Raises DataError."""
        from PIL import Image

        if self._processor is None:
            from transformers import AutoImageProcessor

            self._processor = AutoImageProcessor.from_pretrained(
                self._folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
        shape = self._shape
        scaled = decoded(content, name=name).resize((shape.width, shape.height), Image.Resampling.BICUBIC)
        values = self._processor(images=[scaled], do_resize=False, return_tensors="np")["pixel_values"]
        patches = np.asarray(values, dtype=np.float32)
        if patches.shape != (shape.num_patches, shape.values):
            expected = f"{shape.num_patches} patches of {shape.values} values"
            raise DataError(
                f"{self._folder / PREPROCESSOR} makes {patches.shape} of an image, not {expected}",
                help="use the file of the model's own directory",
            )
        return patches


def _require_shape(content: bytes, shape: ImageShape, *, name: str) -> None:
    """DataError if settings state other patches than config.json."""
    try:
        settings = loads(content)
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {error}", help="restore the file") from error
    for key, value in zip(PATCH_SIZES, (shape.patch, shape.merge, shape.frames), strict=True):
        own = settings.get(key, value) if isinstance(settings, dict) else None
        if own != value:
            raise DataError(
                f"{name} has {own} for `{key}`, and the encoder in config.json {value}",
                help="use the file of the model's own directory",
            )
