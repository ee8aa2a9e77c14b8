"""The language model of a checkpoint that has an image encoder too. Imports torch.

It is a causal language model of its own: modules and tensors have the names that they have in the whole, and
its config is the whole's `text_config`. Text alone never reaches the encoder, which then takes no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from planc.vocab import ImageShape

SEEING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The model types that planc knows to have such a part."""
ENCODER = "model.visual"
"""The name of the encoder in the whole."""


def sees_images(config: PreTrainedConfig) -> bool:
    """Whether a config is that of a whole with an image encoder."""
    return config.model_type in SEEING


def language_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the language model in it; of any other model its own."""
    if not sees_images(config):
        return config
    text: PreTrainedConfig = config.text_config
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def language_part(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of the language model in the whole that a config describes."""
    (name,) = config.architectures
    whole: type[PreTrainedModel] = getattr(transformers, name)
    text = MODEL_MAPPING[type(config.text_config)]
    return type(name, (_LanguagePart, whole), {"_planc_whole": config, "_planc_text": text})


def is_language_part(model: nn.Module) -> bool:
    """Whether a model is the language part of a whole."""
    return isinstance(model, _LanguagePart)


def whole_of(model: PreTrainedModel) -> PreTrainedModel:
    """The whole on meta, of which a model is the language part; of any other model itself."""
    return whole_of_config(model._planc_whole) if isinstance(model, _LanguagePart) else model


def image_encoder(config: PreTrainedConfig, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The encoder of images of the whole that a config describes, on meta and in this dtype."""
    encoder: PreTrainedModel = whole_of_config(config, dtype=dtype).model.visual
    return encoder


def whole_of_config(config: PreTrainedConfig, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The whole that a config describes, on meta and in this dtype, whichever the config has."""
    kind: type[PreTrainedModel] = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        # The encoder's own code for eager attention rounds scores to float32.
        whole: PreTrainedModel = kind._from_config(deepcopy(config), dtype=dtype, attn_implementation="sdpa")
    return whole


def whole_values(
    model: PreTrainedModel, values: Mapping[str, Any], *, image_token: int, video_token: int
) -> Mapping[str, Any]:
    """The values of the whole's config.json, around those of a smaller language part; of any other model its
    own. The encoder is small too, in patches and windows of the same sizes."""
    if not isinstance(model, _LanguagePart):
        return values
    whole = model._planc_whole.to_dict()
    width = "embed_dim" if "embed_dim" in whole["vision_config"] else "hidden_size"
    out = "hidden_size" if width == "embed_dim" else "out_hidden_size"
    small = {**_SMALL_ENCODER, width: _SMALL_WIDTH, out: values["hidden_size"]}
    encoder = {name: small.get(name, value) for name, value in whole["vision_config"].items()}
    tokens = {"image_token_id": image_token, "video_token_id": video_token}
    return {**whole, **tokens, "text_config": values, "vision_config": encoder}


_SMALL_WIDTH = 32
_SMALL_ENCODER = {
    "depth": 2,
    "num_heads": 2,
    "intermediate_size": 48,
    "mlp_ratio": 2,
    "num_position_embeddings": 16,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
}


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """The images of a micro-batch, one of each sequence: [B, tokens, hidden].

    `for_layers` are what each of the first layers adds to the hidden states of the same tokens, if the model
    does so.
    """

    tokens: Tensor
    for_layers: tuple[Tensor, ...] = ()

    def among(self, embedded: Tensor, places: Tensor) -> dict[str, Any]:
        """A language model's arguments for tokens [B, S, hidden]; `places` [B, S] are theirs in the image."""
        is_image = places >= 0
        index = places.clamp(min=0).unsqueeze(-1).expand_as(embedded)
        of_images = self.tokens.to(embedded.dtype).gather(1, index)
        given: dict[str, Any] = {"inputs_embeds": torch.where(is_image.unsqueeze(-1), of_images, embedded)}
        if self.for_layers:
            given["visual_pos_masks"] = is_image
            # Ranks of cp have a part of each image.
            given["deepstack_visual_embeds"] = [
                added.to(embedded.dtype).gather(1, index)[is_image] for added in self.for_layers
            ]
        return given


def encoded(encoder: nn.Module, pixels: Tensor, shape: ImageShape) -> EncodedImages:
    """The images [B, patches, values] of one shape as an encoder makes them."""
    number = pixels.shape[0]
    grid = torch.tensor([[1, shape.rows, shape.columns]] * number, device=pixels.device)
    output = encoder(pixels.flatten(0, 1), grid_thw=grid)
    layers = getattr(output, "deepstack_features", None) or ()
    tokens, *others = (part.unflatten(0, (number, -1)) for part in (output.pooler_output, *layers))
    return EncodedImages(tokens, tuple(others))


def without_values(encoder: PreTrainedModel, number: int, shape: ImageShape) -> EncodedImages:
    """Images as `encoded` makes them, of zeros and without what layers add."""
    config = encoder.config
    hidden = getattr(config, "out_hidden_size", config.hidden_size)
    return EncodedImages(
        torch.zeros(number, shape.num_tokens, hidden, dtype=encoder.dtype, device=encoder.device)
    )


def image_positions(input_ids: Tensor, *, token: int, shape: ImageShape) -> tuple[Tensor, Tensor]:
    """The places [B, S] of tokens in the image of their sequence, -1 for others; and the positions [3, B, S]
    of all tokens in time, height and width.

    Text counts on in all three. An image's tokens have those of a grid that begins where the text before it
    ends, and the text after it begins behind the grid's longer side.
    """
    rows, columns = shape.rows // shape.merge, shape.columns // shape.merge
    is_image = input_ids == token
    first = is_image.int().argmax(1, keepdim=True)
    place = torch.arange(input_ids.shape[1], device=input_ids.device)
    after = place - first
    text = place - (after >= shape.num_tokens) * (shape.num_tokens - max(rows, columns))
    grid = torch.stack([first.expand_as(after), first + after // columns, first + after % columns])
    return after.where(is_image, -1), grid.where(is_image, text)


_PLANS = ("_tp_plan", "_ep_plan", "_pp_plan", "_fsdp_plan")
"""The plans that a model of transformers collects from its modules."""


class _LanguagePart(PreTrainedModel):  # type: ignore[misc]
    """Precedes the class of the whole, and builds the language model alone."""

    _planc_whole: PreTrainedConfig
    _planc_text: Any

    def __init__(self, config: PreTrainedConfig) -> None:
        PreTrainedModel.__init__(self, config)
        inner: Any = nn.Module()
        inner.language_model = language = self._planc_text(config)
        for plan in _PLANS:
            own = {f"language_model.{name}": style for name, style in getattr(language, plan).items()}
            setattr(inner, plan, own)
        self.model = inner
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        images: EncodedImages | None = None,
        image_places: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """The logits; of tokens with a place in `image_places` [B, S], the inputs are those of `images`."""
        given: dict[str, Any] = {"input_ids": input_ids}
        if images is not None and image_places is not None:
            given = images.among(self.get_input_embeddings()(input_ids), image_places)
        inner: Any = self.model
        states = inner.language_model(
            **given, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache
        ).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(states))

    def get_input_embeddings(self) -> nn.Module:
        inner: Any = self.model
        embeddings: nn.Module = inner.language_model.embed_tokens
        return embeddings
