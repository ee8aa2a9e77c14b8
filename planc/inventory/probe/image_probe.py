"""The encoder of images in a checkpoint, and the positions of its tokens. Imports torch, for the probe."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.schema import ImageEncoder
from planc.modeling.language_part import image_positions, whole_of_config

_LAYERS = "blocks."
_NUM_BEFORE, _NUM_AFTER = 3, 4
"""Tokens of text around an image that is tried, of 2 rows and 3 columns."""


def encoder_of(config: PreTrainedConfig, *, path: Path) -> ImageEncoder:
    """The encoder of the whole that a config describes. InventoryError if it can't be built, or if the whole
    gives tokens other positions than planc does."""
    try:
        whole, vision = whole_of_config(config), config.vision_config
        sizes = {name: parameter.shape for name, parameter in whole.model.visual.named_parameters()}
        encoder = ImageEncoder(
            token=config.image_token_id,
            patch=vision.patch_size,
            merge=vision.spatial_merge_size,
            frames=vision.temporal_patch_size,
            num_parameters=sum(size.numel() for size in sizes.values()),
            width=getattr(vision, "embed_dim", vision.hidden_size),
            inner=max(size[0] for name, size in sizes.items() if name.startswith(_LAYERS)),
            outputs=1 + len(getattr(vision, "deepstack_visual_indexes", ())),
        )
        is_known = _has_known_positions(whole, encoder)
    except Exception as error:  # a class may raise anything for values that it does not expect
        raise InventoryError(f"{path}: {error}", help="correct the values in config.json") from error
    if not is_known:
        raise InventoryError(
            f"{path}: {config.architectures[0]} gives the tokens of images other positions than planc does",
            help="use the release of transformers that this planc was tested with",
        )
    if not 0 <= encoder.token < config.text_config.vocab_size:
        raise InventoryError(
            f"{path} has {encoder.token} for `image_token_id`, and the vocabulary has "
            f"{config.text_config.vocab_size} tokens",
            help='set "image_token_id" to the token that the model was pretrained with',
        )
    return encoder


def _has_known_positions(whole: PreTrainedModel, encoder: ImageEncoder) -> bool:
    side = encoder.patch * encoder.merge
    shape = encoder.shape(height=2 * side, width=3 * side)
    other = encoder.token + 1
    ids = [*[other] * _NUM_BEFORE, *[encoder.token] * shape.num_tokens, *[other] * _NUM_AFTER]
    tokens = torch.tensor([ids])
    expected, _ = whole.model.get_rope_index(
        tokens,
        mm_token_type_ids=(tokens == encoder.token).int(),
        image_grid_thw=torch.tensor([[1, shape.rows, shape.columns]]),
    )
    return torch.equal(image_positions(tokens, token=encoder.token, shape=shape)[1], expected)
