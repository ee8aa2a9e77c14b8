"""One process that trains with transformers and torch alone: what every mesh is measured against.

Of planc it takes the initial weights, the packed tokens and the order of samples, nothing that runs:
attention is transformers' eager one; loss, accumulation and schedule are written out here a second time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoConfig, AutoModelForCausalLM

from planc.plan import spec
from planc.runtime.backends.torch.weights import initialise
from planc.runtime.data.open import OpenData, open_data
from planc.verify.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Training:
    """What one process did: per step, losses, gradient norms and sample ids; tensors by parameter name."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    sample_ids: tuple[tuple[int, ...], ...]
    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of the first step, before clipping."""
    final: dict[str, Tensor]


def train(recipe: Recipe) -> Training:
    """The first steps of a recipe in one process, with every gradient of the first."""
    torch.manual_seed(0)
    dtype = getattr(torch, recipe.dtype)
    config = AutoConfig.from_pretrained(
        recipe.base / recipe.model, local_files_only=True, trust_remote_code=False
    )
    model = AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation="eager", trust_remote_code=False
    )
    initialise(model, seed=recipe.seed)
    model.train()
    initial = snapshot(model)
    data = open_data(recipe.data, base=recipe.base, model_vocab_size=config.vocab_size)
    optimizer, schedule = _optimizer(model, recipe)
    losses, norms, rates, ids, gradients = [], [], [], [], {}
    for step in range(recipe.num_steps):
        sample_ids = data.order.sample_ids(step * recipe.global_batch, count=recipe.global_batch)
        loss = _loss(model, data, sample_ids, length=recipe.data.sequence_length)
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        limit = math.inf if recipe.clip_grad_norm is None else recipe.clip_grad_norm
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit)))
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        ids.append(tuple(int(i) for i in sample_ids))
    return Training(
        tuple(losses), tuple(norms), tuple(rates), tuple(ids), initial, gradients, snapshot(model)
    )


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters by name, tied ones once."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _loss(model: nn.Module, data: OpenData, sample_ids: np.ndarray, *, length: int) -> Tensor:
    """The mean over all tokens; each label is the stream's next token, cut here from the stream itself."""
    windows = np.stack([data.dataset.tokens[i * length : i * length + length + 1] for i in sample_ids])
    tokens = torch.from_numpy(windows.astype(np.int64))
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    logits = logits if logits.dtype is torch.float64 else logits.float()
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _optimizer(model: nn.Module, recipe: Recipe) -> tuple[AdamW, LambdaLR]:
    decays, settings = dict(recipe.decays), recipe.optimizer
    groups = [
        {"params": [parameter], "weight_decay": decays.get(name, settings.weight_decay)}
        for name, parameter in model.named_parameters()
    ]
    optimizer = AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    return optimizer, LambdaLR(optimizer, lambda done: factor(recipe, step=done + 1))


def factor(recipe: Recipe, *, step: int) -> float:
    """The share of the peak learning rate: up to it in `warmup` steps, then down to `min_factor`."""
    schedule = recipe.schedule
    warmup: int = schedule.warmup
    if step <= warmup:
        return step / warmup
    if isinstance(schedule, spec.Constant):
        return 1.0
    progress: float = min(1.0, (step - warmup) / max(1, recipe.total_steps - warmup))
    if isinstance(schedule, spec.Cosine):
        progress = (1.0 - math.cos(math.pi * progress)) / 2.0
    lowest: float = schedule.min_factor
    return 1.0 - (1.0 - lowest) * progress
