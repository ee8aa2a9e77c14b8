"""One process that trains what every case trains, with transformers, numpy and torch alone.

The weights are transformers' own, written here to where the cases' plans load them from. Tokens, order,
schedule, decay and clipping are written a second time, from planc's documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from planc.data_sources.kinds import TextSource
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.spec import DataSpec
from planc.verify.reference import Training
from tests.models.independent import digests_of, gradients_of, snapshot
from tests.parity import cases

__all__ = ["Training", "initial_digests", "open_samples", "train_reference", "write_weights"]

NOISE = 0.02
END_OF_DOCUMENT = 256


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")


def train_reference(
    model_name: str,
    *,
    workspace: Path,
    dtype: torch.dtype = torch.float32,
    frozen: Sequence[str] = (),
    prepare: Callable[[nn.Module], object] = lambda model: None,
    value: Callable[[Tensor, Tensor], Tensor] = _cross_entropies,
    update: Callable[[list[dict[str, object]]], torch.optim.Optimizer] | None = None,
    factor: Callable[[int], float] | None = None,
) -> Training:
    """The training that every case with this model, and with its pretrained weights, must repeat.

    `frozen` are the names of modules and parameters that keep their values; `prepare` changes the model
    before it trains. `value` is the loss of each token, `update` makes the optimizer of parameter groups, and
    `factor` is that of the learning rate at a step, from 1.
    """
    write_weights(workspace / model_name)
    model = _loaded(workspace / model_name, dtype=dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(f"{name}.".startswith(f"{one}.") for one in frozen))
    prepare(model)
    initial, windows = snapshot(model), _windows(workspace)
    adamw = partial(torch.optim.AdamW, lr=cases.LEARNING_RATE, betas=cases.BETAS, eps=1e-8)
    optimizer = (update or adamw)(_groups(model))
    losses, norms, rates, ids, gradients = [], [], [], [], {}
    order = _order(len(windows))
    for step in range(1, cases.NUM_STEPS + 1):
        rate = cases.LEARNING_RATE * (factor or _factor)(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        sample_ids = [next(order) for _ in range(cases.GLOBAL_BATCH)]
        tokens = windows[sample_ids]
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = value(logits.flatten(0, 1), tokens[:, 1:].flatten()).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = gradients or gradients_of(model)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        rates.append((rate,))
        ids.append(tuple(sample_ids))
    return Training(
        losses=tuple(losses),
        balances=(),
        grad_norms=tuple(norms),
        learning_rates=tuple(rates),
        sample_ids=tuple(ids),
        initial=initial,
        gradients=gradients,
        final=snapshot(model),
    )


def write_weights(folder: Path) -> None:
    """Weights next to a model's config.json, unless they exist: transformers' own, each with noise."""
    if (folder / "model.safetensors").exists():
        return
    torch.manual_seed(11)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += NOISE * torch.randn_like(parameter)
    with TemporaryDirectory() as name:
        # Its config.json says the same in other words, and inventories are of those that are there.
        model.save_pretrained(name)
        content = (Path(name) / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content)


def initial_digests(model_name: str, *, workspace: Path) -> dict[str, str]:
    """Of every parameter and buffer, as transformers loads them."""
    return digests_of(_loaded(workspace / model_name, dtype=torch.float32))


def _loaded(folder: Path, *, dtype: torch.dtype) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.train()


def _windows(workspace: Path) -> Tensor:
    """[sequences, sequence_length + 1]: the corpus with its end, each sequence with the token after it."""
    stream = torch.tensor([*(workspace / cases.CORPUS).read_bytes(), END_OF_DOCUMENT])
    starts = range(0, len(stream) - cases.SEQUENCE_LENGTH, cases.SEQUENCE_LENGTH)
    return torch.stack([stream[start : start + cases.SEQUENCE_LENGTH + 1] for start in starts])


def _order(num_sequences: int) -> Iterator[int]:
    """Epoch after epoch, each sorted by raw PCG64 numbers that are seeded with (shuffle_seed, epoch)."""
    epoch = 0
    while True:
        keys = np.random.PCG64(np.random.SeedSequence([cases.SHUFFLE_SEED, epoch])).random_raw(num_sequences)
        yield from sorted(range(num_sequences), key=lambda index, keys=keys: (keys[index], index))  # type: ignore[misc]
        epoch += 1


def _factor(step: int) -> float:
    """Linear warmup, then half a cosine down towards the least share of the peak."""
    if step <= cases.WARMUP_STEPS:
        return step / cases.WARMUP_STEPS
    progress = (step - 1 - cases.WARMUP_STEPS) / (cases.NUM_STEPS - cases.WARMUP_STEPS)
    return cases.MIN_FACTOR + (1 - cases.MIN_FACTOR) * (1 + math.cos(math.pi * progress)) / 2


def _groups(model: nn.Module) -> list[dict[str, object]]:
    """Norms, of whatever kind, do not decay."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    return [
        {"params": [one for name, one in named if "norm" in name], "weight_decay": 0.0},
        {"params": [one for name, one in named if "norm" not in name], "weight_decay": cases.WEIGHT_DECAY},
    ]


def open_samples(vocab_size: int, *, workspace: Path) -> OpenData:
    """The corpus as planc packs it, with planc's order."""
    spec = DataSpec(TextSource((cases.CORPUS,)), "bytes", cases.SEQUENCE_LENGTH, cases.SHUFFLE_SEED)
    return open_data(spec, base=workspace, model_vocab_size=vocab_size)
