"""Keep transformers' code from asking for the values of tokens, for a warning alone. Imports torch."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def leave_tokens_unasked(model: PreTrainedModel) -> None:
    """Turn off the warning of padding without an attention mask: no sequence of planc's has such padding.

    On meta, tokens have no values; on a device, the answer would wait for the host in every forward.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            untyped: Any = module
            untyped.warn_if_padding_and_no_attention_mask = _silent


def _silent(input_ids: object, attention_mask: object) -> None:
    pass
