"""Trains on bytes of text with the expert parallelism and the FSDP of transformers itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from examples.by_hand import Settings, decay_groups


@dataclass(frozen=True, slots=True)
class Trainer:
    """What training needs on one rank.

    Experts and other weights are on different meshes, a mixture that `clip_grad_norm_` refuses.
    """

    settings: Settings
    model: Any
    optimizer: AdamW
    tokens: Tensor

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        settings, total = self.settings, torch.zeros(())
        own = sample_ids.view(settings.num_micro_steps, settings.dp_shard, settings.micro_batch)
        for number, ids in enumerate(own[:, dist.get_rank()], start=1):
            self.model.set_requires_gradient_sync(number == settings.num_micro_steps)
            at = ids[:, None] * settings.sequence_length + torch.arange(settings.sequence_length)
            inputs, labels = self.tokens[at].long(), self.tokens[at + 1].long()
            logits = self.model(input_ids=inputs, use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) / settings.num_micro_steps
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        return total.item()


def build(settings: Settings, *, ep: int) -> Trainer:
    """The model as transformers shards it over all ranks, its experts over `ep` of them."""
    config = AutoConfig.from_pretrained(settings.model, local_files_only=True)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    sizes = DistributedConfig(fsdp_size=settings.dp_shard, ep_size=ep)
    distributed, _, manager = type(model).prepare_distribute_model(sizes)
    model = type(model).maybe_distribute_model(model, distributed, manager)
    _load_weights(model, settings)
    model.train()
    optimizer = AdamW(decay_groups(model, settings), lr=settings.lr, betas=settings.betas, fused=True)
    tokens = torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8)
    return Trainer(settings, model, optimizer, tokens)


def _load_weights(model: Any, settings: Settings) -> None:
    """Every rank's shards, of weights that transformers loads whole."""
    whole = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32, local_files_only=True)
    weights = whole.state_dict()
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor), f"FSDP shards all weights, {name} too"
            placed = distribute_tensor(
                weights[name], parameter.device_mesh, parameter.placements, src_data_rank=None
            )
            parameter.copy_(placed)
