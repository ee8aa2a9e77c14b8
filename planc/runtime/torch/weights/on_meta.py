"""The model of a directory, without memory."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from planc.runtime.model_files import refuse_remote_code


def on_meta(folder: Path) -> PreTrainedModel:
    """The model of a directory's config.json, whole, on the meta device."""
    refuse_remote_code(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", trust_remote_code=False
        )
    return model
