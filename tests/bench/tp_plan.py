"""Trains on bytes of text with the tensor parallelism of transformers itself: `tp_plan="auto"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from examples.by_hand import Settings, decay_groups, load_weights


@dataclass(frozen=True, slots=True)
class Trainer:
    """What training needs on one rank.

    Parameters are DTensors and plain ones side by side, a mixture that `clip_grad_norm_` refuses.
    """

    settings: Settings
    model: Any
    optimizer: AdamW
    tokens: Tensor

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        length = self.settings.sequence_length
        batches = sample_ids.split(self.settings.micro_batch)
        total = torch.zeros(())
        for ids in batches:
            at = ids[:, None] * length + torch.arange(length)
            inputs, labels = self.tokens[at].long(), self.tokens[at + 1].long()
            logits = self.model(input_ids=inputs, use_cache=False).logits
            whole = logits.full_tensor() if isinstance(logits, DTensor) else logits
            loss = cross_entropy(whole.flatten(0, 1), labels.flatten()) / len(batches)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()


def build(settings: Settings) -> Trainer:
    """The model as transformers shards it, with its weights, its optimizer and its data.

    `from_pretrained` does the same and wants accelerate.
    """
    config = AutoConfig.from_pretrained(settings.model, local_files_only=True)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    sizes = DistributedConfig(tp_plan="auto", tp_size=settings.tp)
    distributed, _, manager = type(model).prepare_distribute_model(sizes)
    model = type(model).maybe_distribute_model(model, distributed, manager)
    load_weights(model, settings.model)
    model.train()
    optimizer = AdamW(decay_groups(model, settings), lr=settings.lr, betas=settings.betas, fused=True)
    tokens = torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8)
    return Trainer(settings, model, optimizer, tokens)
