"""Rows with images, and a model's directory with the settings by which they are read, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PATCH = 4
SETTINGS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
}


def save_image(path: Path, *, seed: int, height: int = 20, width: int = 30) -> None:
    """An image of noise, in which no two pixels are alike by chance."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def save_rows(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def save_settings(folder: Path, **settings: Any) -> None:
    """The settings of a preprocessor, as a model's directory has them."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({**SETTINGS, **settings})
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
