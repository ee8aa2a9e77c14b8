"""Forwards of a model on the meta device. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from planc.inventory.probe.attention_calls import WITHOUT_MASK
from planc.modeling.first_positions import FirstPositions
from planc.modeling.tasks import task_of
from planc.vocab import Task

NUM_TOKENS = 8


def run(
    model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None, *, with_gradients: bool = False
) -> None:
    """One forward on `input_ids` [B, S] and perhaps `position_ids`; on tokens without values by default."""
    if inputs is None:
        inputs = {"input_ids": torch.zeros(1, NUM_TOKENS, dtype=torch.long, device="meta")}
    # The code that makes causal masks reads one to detect packed tokens, which a meta tensor can't show; that
    # of masks to both sides would ask one for its values.
    is_given = makes_masks(model) and task_of(model) is Task.CAUSAL_LM
    masks = {"attention_mask": torch.ones_like(inputs["input_ids"])} if is_given else {}
    with torch.set_grad_enabled(with_gradients):
        model(**inputs, use_cache=False, **masks)


def run_again(
    model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None, *, with_gradients: bool = False
) -> None:
    """Run as `run` does, a model that has been run: which of its modules are called is known."""
    with FirstPositions(lacks_values):
        run(model, inputs, with_gradients=with_gradients)


def makes_masks(model: PreTrainedModel) -> bool:
    """Whether the model's attention uses masks."""
    return bool(model.config._attn_implementation != WITHOUT_MASK)


def lacks_values(tensor: Tensor) -> bool:
    return tensor.is_meta
