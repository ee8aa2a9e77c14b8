"""Trains a pipeline on bytes of text with torch.distributed.pipelining, cut as its documentation does: its
stages call layers one by one, or the model's own forward on fewer layers, which any model has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM

from examples.by_hand import Settings, decay_groups, learning_rate_factor


class Stage(nn.Module):
    """Some of a Llama's layers; the first stage has the embedding too, the last the norm and the head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed = model.model.embed_tokens
        self.rotary = model.model.rotary_emb
        self.layers = model.model.layers
        self.norm = model.model.norm
        self.head = model.lm_head

    def forward(self, tensor: Tensor) -> Tensor:
        hidden: Tensor = self.embed(tensor)
        places = torch.arange(hidden.shape[1])[None]
        turned = self.rotary(hidden, places)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=places, position_embeddings=turned)
        out: Tensor = self.head(self.norm(hidden))
        return out


class ModelStage(nn.Module):
    """The same by the model's own forward."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensor: Tensor) -> Tensor:
        name = "inputs_embeds" if tensor.is_floating_point() else "input_ids"
        out: Tensor = self.model(**{name: tensor}, use_cache=False).logits
        return out


def keep_stage(model: Any, *, rank: int, num_stages: int) -> None:
    """Leave a model the modules of one stage."""
    inner, each = model.model, len(model.model.layers) // num_stages
    inner.layers = inner.layers[rank * each : (rank + 1) * each]
    model.config.num_hidden_layers = each
    if rank > 0:
        inner.embed_tokens = nn.Identity()
    if rank < num_stages - 1:
        inner.norm, model.lm_head = nn.Identity(), nn.Identity()


@dataclass(frozen=True, slots=True)
class Trainer:
    """What training needs on one rank."""

    settings: Settings
    stage: nn.Module
    pipeline: Schedule1F1B
    optimizer: AdamW
    schedule: LambdaLR
    tokens: Tensor

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        at = sample_ids[:, None] * self.settings.sequence_length + torch.arange(self.settings.sequence_length)
        losses: list[Tensor] = []
        last = dist.get_world_size() - 1
        if dist.get_rank() == 0:
            self.pipeline.step(self.tokens[at].long())
        elif dist.get_rank() == last:
            self.pipeline.step(target=self.tokens[at + 1].long(), losses=losses)
        else:
            self.pipeline.step()
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        total = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(total, src=last)
        return total.item()

    def _clip(self) -> None:
        """By the norm of all stages' gradients."""
        parameters = list(self.stage.parameters())
        squared = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) ** 2
        dist.all_reduce(squared)
        nn.utils.clip_grads_with_norm_(parameters, self.settings.max_norm, squared.sqrt())


def build(settings: Settings, stage_of: Callable[[Any], nn.Module]) -> Trainer:
    """A stage for each rank of the default group."""
    rank, number = dist.get_rank(), dist.get_world_size()
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=torch.float32, local_files_only=True
    )
    model.train()
    keep_stage(model, rank=rank, num_stages=number)
    part = stage_of(model)
    stage = PipelineStage(part, rank, number, torch.device("cpu"))
    optimizer = AdamW(decay_groups(part, settings), lr=settings.lr, betas=settings.betas, fused=True)
    return Trainer(
        settings,
        part,
        Schedule1F1B(stage, settings.num_micro_steps, loss_fn=_mean_loss),
        optimizer,
        LambdaLR(optimizer, partial(learning_rate_factor, settings=settings)),
        torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8),
    )


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())
