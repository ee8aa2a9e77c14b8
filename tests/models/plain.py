"""The loss of the first step by transformers alone, of the model as its defaults build it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from planc.runtime.backends.torch.weights import initialise
from planc.runtime.data.open import open_data
from tests.models.plans import recipe


def plain_loss(rank: int, world_size: int, model_type: str, folder: Path) -> float:
    """The loss of what the model gives for the tokens alone, with the attention that transformers chooses."""
    of = recipe(model_type, base=folder)
    config = AutoConfig.from_pretrained(folder / model_type, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    initialise(model, seed=of.seed)
    model.train()
    data = open_data(of.data, base=folder, model_vocab_size=config.vocab_size)
    length = of.data.sequence_length
    windows = [
        data.dataset.tokens[i * length : i * length + length + 1]
        for i in data.order.sample_ids(0, count=of.global_batch)
    ]
    tokens = torch.from_numpy(np.stack(windows).astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return float(cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
