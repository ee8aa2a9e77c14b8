"""Images of a small model: its data and its encoder's weights, and the loss by a second implementation."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from planc.data_sources.kinds import PythonStdlibSource
from planc.inventory.small_config import IMAGE_ID
from planc.modeling.language_part import ENCODER, image_encoder
from planc.plan.bind import BoundPlan
from planc.plan.task import ImageTextToText
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.images import PREPROCESSOR
from planc.runtime.data.padded import ImageDataset
from planc.runtime.data.sources import documents
from planc.runtime.data.spec import Images
from planc.vocab import ImageShape

IMAGE_ROWS = "images.jsonl"
_WEIGHTS = "model.safetensors"
_NUM_ROWS, _MAX_TEXT = 24, 24
_SEED = 4


def small_images(bound: BoundPlan, model: str) -> Images | None:
    """Images of 2 rows and 3 columns of tokens, for the small model in the directory `model`; None for a plan
    without images."""
    encoder = bound.inventory.images
    if not isinstance(bound.plan.model.task, ImageTextToText) or encoder is None:
        return None
    side = encoder.patch * encoder.merge
    return Images(model, IMAGE_ID, encoder.shape(height=2 * side, width=3 * side))


def write_images(folder: Path, images: Images, config: Any) -> None:
    """Write rows of noise with pieces of text, and what the small model's directory lacks."""
    from PIL import Image

    text = next(documents(PythonStdlibSource(), base=folder)).text
    shape, generator = images.shape, np.random.default_rng(_SEED)
    rows = []
    for number in range(_NUM_ROWS):
        height, width = shape.height + number % 5, shape.width - number % 7
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        start, middle = number * _MAX_TEXT, 1 + number % 9
        piece = text[start : start + 2 + number % _MAX_TEXT].ljust(middle + 1, "x")
        row = {"image": f"{number}.png", "prompt": piece[:middle], "completion": piece[middle:]}
        rows.append(json.dumps(row))
    (folder / IMAGE_ROWS).write_text("\n".join(rows), encoding="utf-8")
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": shape.patch,
        "merge_size": shape.merge,
        "temporal_patch_size": shape.frames,
    }
    (folder / images.path / PREPROCESSOR).write_text(json.dumps(settings), encoding="utf-8")
    drawn = torch.Generator().manual_seed(_SEED)
    weights = {
        f"{ENCODER}.{name}": torch.randn(parameter.shape, generator=drawn) * parameter.shape[-1] ** -0.5
        for name, parameter in image_encoder(config).named_parameters()
    }
    save_file(weights, folder / images.path / _WEIGHTS)


def with_encoder(model: Any, folder: Path) -> None:
    """Give a whole's encoder the weights of the small model's files, and keep it out of what is trained."""
    encoder = model.model.visual
    weights = load_file(folder / _WEIGHTS)
    named = {name.removeprefix(f"{ENCODER}."): value for name, value in weights.items()}
    encoder.load_state_dict(named)
    del model.model.visual
    # As an attribute, and not as a module: its parameters are none of the model's.
    model.model.__dict__["visual"] = encoder.requires_grad_(False)


def loss_of_images(
    model: Any,
    dataset: Dataset,
    ids: np.ndarray,
    images: Images,
    folder: Path,
    values_of: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """The mean over the tokens of all answers. The whole itself places each image, and numbers its tokens."""
    assert isinstance(dataset, ImageDataset) and dataset.is_target is not None
    shape, values = images.shape, []
    grid = torch.tensor([[1, shape.rows, shape.columns]])
    for number in map(int, ids):
        start, stop = (int(place) for place in dataset.starts[number : number + 2])
        tokens = torch.from_numpy(dataset.tokens[start:stop].astype(np.int64))[None]
        is_label = torch.from_numpy(dataset.is_target[start + 1 : stop].copy())[None]
        pixels = _pixels(dataset.image(number), shape, folder).to(model.dtype)
        logits = model(
            input_ids=tokens,
            mm_token_type_ids=(tokens == images.token).int(),
            pixel_values=pixels,
            image_grid_thw=grid,
            use_cache=False,
        ).logits
        logits = logits if logits.dtype is torch.float64 else logits.float()
        labels = tokens[:, 1:][is_label][None]
        values.append(values_of(logits[:, :-1][is_label][None], labels, labels))
    return torch.cat(values).mean()


def _pixels(content: bytes, shape: ImageShape, folder: Path) -> Tensor:
    """The patches [patches, values] of an image, by transformers alone."""
    from PIL import Image
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True)
    with Image.open(io.BytesIO(content)) as image:
        scaled = image.convert("RGB").resize((shape.width, shape.height), Image.Resampling.BICUBIC)
    values: Tensor = processor(images=[scaled], do_resize=False, return_tensors="pt")["pixel_values"]
    return values.float()
