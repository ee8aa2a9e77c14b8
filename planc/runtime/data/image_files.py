"""Files of images, which Pillow decodes. Without numpy: the process that tokenizes reads this module too."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.errors import STOPS

_INSTALL = "pip install 'planc[images]'"


def require_image(record: Mapping[str, object], *, key: str, origin: str) -> None:
    """DataError for a record without an image."""
    if record.get(key) is None:
        names = ", ".join(record) or "none"
        help = f"name the key of its image in `image_chat(..., image = ...)`: it has {names}"
        raise DataError(f'{origin} has no image under "{key}"', help=help)


def image_in(
    record: Mapping[str, object], *, key: str, base: Path, origin: str, is_sample: bool, is_decoded: bool
) -> bytes:
    """The content of a record's image file: at a path, or as datasets have it. Raises DataError, also for
    what Pillow can't decode.

    Of a sample, which trains nothing, no content is kept; unless it `is_decoded`, only its header is read.
    """
    value = record[key]
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    content = value.get("bytes") if isinstance(value, Mapping) else None
    path = value.get("path") if isinstance(value, Mapping) else value
    name = f"the image of {origin}"
    if not isinstance(content, bytes):
        if not isinstance(path, str) or not path:
            help = 'write the path of one file, relative to the plan, or {"bytes": ..., "path": ...}'
            raise DataError(f'"{key}" of {origin} is not an image', help=help)
        name = f"{path} of {origin}"
        content = read_regular_file(base / path, name=name)
    decoded(content, name=name, is_whole=is_decoded)
    return b"" if is_sample else content


def named(value: object) -> bytes:
    """A few bytes that differ for another image of a record, given by its path or content."""
    return hashlib.sha256(repr(value).encode()).digest()


def require_pillow() -> None:
    """DataError unless images can be decoded here."""
    try:
        import PIL.Image  # noqa: F401  # an optional library
    except ImportError as error:
        raise DataError("images are decoded by Pillow, which is not installed", help=_INSTALL) from error


def decoded(content: bytes, *, name: str, is_whole: bool = True) -> Any:
    """An image in three colors, turned as its file says; unless `is_whole`, only its header is read. Raises
    DataError."""
    require_pillow()
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            return ImageOps.exif_transpose(image).convert("RGB") if is_whole else image
    except STOPS:
        raise
    except BaseException as error:  # Pillow raises whatever a decoder does
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            # Its message has an address.
            reason = "it has no format that Pillow knows"
        raise DataError(f"{name} cannot be decoded: {reason}", help="replace the file") from error
