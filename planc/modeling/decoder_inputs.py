"""The tokens that an encoder-decoder's decoder is given. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.modeling.tasks import task_of
from planc.vocab import IGNORED_LABEL, Task


def decoder_inputs(labels: Tensor, *, start: int, padding: int) -> Tensor:
    """[B, S] of labels [B, S]: each position has the label before it, and the first `start`."""
    first = torch.full_like(labels[:, :1], start)
    return torch.cat((first, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED_LABEL, padding)), dim=1)


def return_logits_alone(model: PreTrainedModel) -> None:
    """Let an encoder-decoder return nothing but its logits.

    It returns its encoder's output too. FSDP takes the gradient of any output for the begin of backward, and
    would gather the decoder's layers again when backward reaches the encoder.
    """

    def alone(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return type(output)(logits=output.logits)

    if task_of(model) is Task.SEQ2SEQ_LM:
        model.register_forward_hook(alone)


def same_for_decoder(model: PreTrainedModel) -> None:
    """Give an encoder-decoder's decoder the encoder's own tokens in forwards that name none, nor labels: for
    probes."""

    def named(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        keywords.pop("position_ids", None)
        own = {} if "labels" in keywords else {"decoder_input_ids": keywords["input_ids"]}
        return arguments, own | keywords

    if task_of(model) is Task.SEQ2SEQ_LM:
        model.register_forward_pre_hook(named, with_kwargs=True)
