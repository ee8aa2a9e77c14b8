"""One process that trains with transformers and torch alone: what every mesh is measured against.

Of planc it takes the initial weights and the order of samples, nothing that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from transformers import AutoConfig, AutoModelForCausalLM

from planc.runtime.backends.torch.weights import initialise
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.sources import TextSource
from planc.runtime.data.spec import DataSpec
from tests.parity import cases


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


def train_reference(model_name: str, *, workspace: Path) -> Training:
    """The training that every case with this model must repeat."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(workspace / model_name, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    initialise(model, seed=cases.SEED)
    model.train()
    initial = snapshot(model)
    data = open_samples(config.vocab_size, workspace=workspace)
    optimizer, schedule = _optimizer(model)
    losses, norms, rates, ids, gradients = [], [], [], [], {}
    for step in range(cases.NUM_STEPS):
        sample_ids = data.order.sample_ids(step * cases.GLOBAL_BATCH, count=cases.GLOBAL_BATCH)
        loss = _loss(model, data, sample_ids)
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)))
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        ids.append(tuple(int(i) for i in sample_ids))
    return Training(
        tuple(losses), tuple(norms), tuple(rates), tuple(ids), initial, gradients, snapshot(model)
    )


def open_samples(vocab_size: int, *, workspace: Path) -> OpenData:
    """The corpus packed, with its order."""
    spec = DataSpec(TextSource((cases.CORPUS,)), "bytes", cases.SEQUENCE_LENGTH, cases.SHUFFLE_SEED)
    return open_data(spec, base=workspace, model_vocab_size=vocab_size)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _loss(model: nn.Module, data: OpenData, sample_ids: np.ndarray) -> Tensor:
    """The mean over all tokens; each label is the stream's next token, cut here from the stream itself."""
    length = cases.SEQUENCE_LENGTH
    windows = np.stack([data.dataset.tokens[i * length : i * length + length + 1] for i in sample_ids])
    tokens = torch.from_numpy(windows.astype(np.int64))
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _optimizer(model: nn.Module) -> tuple[AdamW, SequentialLR]:
    named = dict(model.named_parameters())
    norms = [parameter for name, parameter in named.items() if "norm" in name]
    others = [parameter for name, parameter in named.items() if "norm" not in name]
    groups = [
        {"params": norms, "weight_decay": 0.0},
        {"params": others, "weight_decay": cases.WEIGHT_DECAY},
    ]
    optimizer = AdamW(groups, lr=cases.LEARNING_RATE, betas=cases.BETAS)
    warmup = LinearLR(optimizer, start_factor=1 / cases.WARMUP_STEPS, total_iters=cases.WARMUP_STEPS - 1)
    decay = CosineAnnealingLR(
        optimizer,
        T_max=cases.NUM_STEPS - cases.WARMUP_STEPS,
        eta_min=cases.LEARNING_RATE * cases.MIN_FACTOR,
    )
    return optimizer, SequentialLR(optimizer, [warmup, decay], milestones=[cases.WARMUP_STEPS - 1])
