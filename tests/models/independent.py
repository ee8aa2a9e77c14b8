"""What planc is measured against: transformers and torch, used as their own documentation has it.

Nothing of planc is imported here, nor any test code that imports it: weights, data, order, loss, optimizer
and the values of buffers are this file's or transformers' own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
)

NUM_SEQUENCES = 4
Batch = tuple[Tensor, Tensor]
"""The inputs of a step, [sequences, sequence_length], and their labels, or the classes [sequences], or those
of tokens with PADDING after texts."""
SHUFFLE_SEED, UNLABELED = 42, -100
MASKED, MASK, NUM_BYTES = ("ForMaskedLM", "WithLMHeadModel"), 257, 256
WITH_TARGETS, TARGET_SHARES = ("ForConditionalGeneration", "MTModel"), (0.4, 0.9, 1.0, 0.6)
"""The names of encoder-decoders, and the lengths of their targets with the end, in sequences."""
CLASSIFIER, OF_WORDS, PADDING, NUM_LABELS = "ForSequenceClassification", "ForTokenClassification", 1, 3
SHARES, LABELS = (1.0, 0.7, 0.25, 0.9), (0, 2, 1, 2)
"""The lengths of the texts that have classes, in sequences, and these classes."""
CHOSEN, REPLACED, RANDOM = 0.15, 0.8, 0.1
"""The share of tokens that are hidden, of those the share that the mask replaces, and that other bytes do."""
END_OF_DOCUMENT = 256
NOISE = 0.02
NUM_MOVED = 4
RESET_BY_LOADING = "balancing_biases"
"""ZAYA's code puts one of these numbers back to -1 as transformers loads it, whatever the file has. planc
takes what the file has, so they are left as ZAYA has them."""
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 1e-2, (0.9, 0.95), 1e-3, 0.1, 1.0
"""A small rate would drown in rounding, a small eps would make whole updates of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process did. Tensors by name; digests of all parameters and buffers before the first step."""

    digests: dict[str, str]
    constant: tuple[str, ...]
    """Saved tensors in which a wrong factor or summand would not show: there are to be none."""
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of the first step, before clipping."""
    noise: dict[str, Tensor]
    """What roundings of the model's dtype do to each of them."""
    norm_noise: tuple[float, ...]
    """Relative: how far the norms move, at most, with torch's other AdamW, whose updates round differently,
    with half of the sequences at a time, whose sums do, and with weights that are rounded otherwise."""
    final: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor that an initialization draws: what can be said of its values."""

    dtype: str
    shape: tuple[int, ...]
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Initial:
    """A newly initialized model: digests of what every seed has equal, and what is drawn."""

    settled: dict[str, str]
    drawn: dict[str, Drawn]


def write_corpus(path: Path, *, sequence_length: int) -> None:
    """A text of exactly the sequences of one step, so their order does not matter, and as many rows of a text
    with a class, with classes of its words, and with a target."""
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(sequence_length))
    # The token after the last is the end of the document.
    path.write_text(text[: NUM_SEQUENCES * sequence_length], encoding="ascii")
    rows: list[dict[str, Any]] = [
        {"text": text[number * sequence_length :][: int(share * sequence_length)], "label": label}
        for number, (share, label) in enumerate(zip(SHARES, LABELS, strict=True))
    ]
    for row, share in zip(rows, TARGET_SHARES, strict=True):
        row["target"] = row["text"][::-1].ljust(sequence_length, "~")[: int(share * sequence_length) - 1]
        row["words"] = row["text"].split()
        row["tags"] = [(len(word) + at) % NUM_LABELS for at, word in enumerate(row["words"])]
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="ascii")


def write_weights(folder: Path, *, noise: float = NOISE) -> None:
    """Put float32 weights next to a config.json: transformers' own initialization, with noise on each."""
    torch.manual_seed(11)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = _auto(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # Zeros and ones, of which a wrong one would not show, are moved too; tied ones only once.
        named = {id(one): (name, one) for name, one in model.state_dict(keep_vars=True).items()}
        for name, tensor in named.values():
            if tensor.is_floating_point() and not name.endswith(RESET_BY_LOADING):
                # Of a gate at -10, a bfloat16 would round away what is small.
                tensor += noise * torch.randn_like(tensor) * tensor.abs().clamp(min=1)
    model.save_pretrained(folder)


def _auto(config: PreTrainedConfig) -> Any:
    (name,) = config.architectures
    if str(name).endswith(OF_WORDS):
        return AutoModelForTokenClassification
    if str(name).endswith(CLASSIFIER):
        return AutoModelForSequenceClassification
    if str(name).endswith(WITH_TARGETS):
        return AutoModelForSeq2SeqLM
    return AutoModelForMaskedLM if str(name).endswith(MASKED) else AutoModelForCausalLM


def constants(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Floating-point tensors that are the same along a dimension; of scalars, those that are 0 or 1."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or name.endswith(RESET_BY_LOADING):
            continue
        wide = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        if any(bool((tensor == tensor.narrow(dim, 0, 1)).all()) for dim in wide):
            yield name
        if tensor.numel() == 1 and tensor.item() in (0.0, 1.0):
            yield name


def measured(
    rank: int, world_size: int, folder: Path, corpus: Path, sequence_length: int, dtype: str, num_steps: int
) -> Measured:
    """Some steps of the folder's model in this dtype, each over all of the corpus."""
    model = loaded(folder, dtype=dtype)
    batches = batches_of(corpus, model, sequence_length=sequence_length, num_steps=num_steps)
    digests, initial = digests_of(model), snapshot(model)
    constant = tuple(constants(model.state_dict()))
    losses, norms, gradients = _trained(model, batches, num_steps=num_steps, fused=None)
    final = snapshot(model)
    noise, norm_noise = {}, (0.0,) * num_steps
    if dtype != "float32":
        noise = _noise(folder, batches[0], gradients, dtype=dtype)
        moved = [*_norms_of_others(folder, batches, dtype=dtype, num_steps=num_steps)]
        norm_noise = tuple(
            max(abs(other - norm) for other in others) / norm
            for norm, *others in zip(norms, *moved, strict=True)
        )
    return Measured(digests, constant, losses, norms, initial, gradients, noise, norm_noise, final)


def _trained(
    model: nn.Module, batches: Sequence[Batch], *, num_steps: int, fused: bool | None, num_parts: int = 1
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, Tensor]]:
    """The losses and gradient norms of some steps, and the gradients of the first. `num_parts` is how many
    equal parts of the sequences have a forward and a backward of their own."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=fused
    )
    losses, norms, gradients = [], [], {}
    for step in range(num_steps):
        loss = 0.0
        inputs, labels = batches[step]
        for part in zip(inputs.chunk(num_parts), labels.chunk(num_parts), strict=True):
            share = sum_of(model, part) / (labels != UNLABELED).sum()
            share.backward()  # type: ignore[no-untyped-call]
            loss += share.item()
        gradients = gradients if step else gradients_of(model)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return tuple(losses), tuple(norms), gradients


def compiled_alone(
    rank: int, world_size: int, folder: Path, corpus: Path, sequence_length: int, recomputed: bool
) -> None:
    """One step of the folder's model with each of its layers compiled, and recomputed; raises what
    torch.compile raises."""
    model = loaded(folder, dtype="float32")
    lists = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
    inner = {id(one) for outer in lists for one in outer.modules() if one is not outer}
    for layer in (layer for one in lists if id(one) not in inner for layer in one):
        if recomputed:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        layer.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    (batch,) = batches_of(corpus, model, sequence_length=sequence_length, num_steps=1)
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]


def loaded(folder: Path, *, dtype: str) -> nn.Module:
    """The folder's model as transformers loads it, ready to train."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model: nn.Module = _auto(config).from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True
    )
    return model.train()


def _norms_of_others(
    folder: Path, batches: Sequence[Batch], *, dtype: str, num_steps: int
) -> Iterator[tuple[float, ...]]:
    """The gradient norms of the same training with other roundings."""
    yield _trained(loaded(folder, dtype=dtype), batches, num_steps=num_steps, fused=True)[1]
    yield _trained(loaded(folder, dtype=dtype), batches, num_steps=num_steps, fused=None, num_parts=2)[1]
    for seed in range(NUM_MOVED):
        model = _rounded_otherwise(loaded(folder, dtype=dtype), seed=seed)
        yield _trained(model, batches, num_steps=num_steps, fused=None)[1]


def _noise(folder: Path, batch: Batch, gradients: dict[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """The largest of several differences: to float32 from the same weights, and to weights rounded otherwise.

    A router chooses by rank. Where two experts are nearly equal one rounding decides, and the gradients jump:
    that is the model's own doing, and shows when the last bit of its weights is moved.
    """
    exact = loaded(folder, dtype=dtype).float()
    others = [
        exact,
        *(_rounded_otherwise(loaded(folder, dtype=dtype), seed=seed) for seed in range(NUM_MOVED)),
    ]
    found = []
    for model in others:
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        other = gradients_of(model)
        found.append({name: one.double() - other[name].double() for name, one in gradients.items()})
    return max(found, key=lambda differences: sum(float(one.square().sum()) for one in differences.values()))


def _rounded_otherwise(model: nn.Module, *, seed: int) -> nn.Module:
    """The model with each weight moved by up to one rounding of its dtype."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            share = torch.rand(parameter.shape, generator=generator) * 2 - 1
            parameter += (parameter.float() * share * torch.finfo(parameter.dtype).eps).to(parameter.dtype)
    return model


def tokens_of(corpus: Path, *, sequence_length: int) -> Tensor:
    """[sequences, sequence_length + 1]: bytes, each sequence with the token after it."""
    stream = torch.tensor([*corpus.read_bytes(), END_OF_DOCUMENT])
    starts = range(0, len(stream) - sequence_length, sequence_length)
    return torch.stack([stream[start : start + sequence_length + 1] for start in starts])


def batches_of(corpus: Path, model: nn.Module, *, sequence_length: int, num_steps: int) -> list[Batch]:
    """The inputs and labels of some steps, each an epoch of all sequences."""
    if type(model).__name__.endswith(CLASSIFIER):
        return [_classified(corpus.with_suffix(".jsonl"), sequence_length=sequence_length)] * num_steps
    if type(model).__name__.endswith(OF_WORDS):
        return [_of_words(corpus.with_suffix(".jsonl"), sequence_length=sequence_length)] * num_steps
    if type(model).__name__.endswith(WITH_TARGETS):
        return [_with_targets(corpus.with_suffix(".jsonl"), sequence_length=sequence_length)] * num_steps
    tokens = tokens_of(corpus, sequence_length=sequence_length)
    if not type(model).__name__.endswith(MASKED):
        return [(tokens[:, :-1], tokens[:, 1:])] * num_steps
    return [_hidden(tokens[:, :-1], step=step) for step in range(num_steps)]


def _classified(path: Path, *, sequence_length: int) -> Batch:
    """Texts with padding after them, and their classes."""
    rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    inputs = torch.full((len(rows), sequence_length), PADDING)
    for number, row in enumerate(rows):
        inputs[number, : len(row["text"])] = torch.tensor([*row["text"].encode()])
    return inputs, torch.tensor([row["label"] for row in rows])


def _with_targets(path: Path, *, sequence_length: int) -> Batch:
    """Texts with padding after them, and their targets, which end with the end of a document."""
    rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    inputs = torch.full((len(rows), sequence_length), PADDING)
    labels = torch.full_like(inputs, UNLABELED)
    for number, row in enumerate(rows):
        target = [*row["target"].encode(), END_OF_DOCUMENT]
        inputs[number, : len(row["text"])] = torch.tensor([*row["text"].encode()])
        labels[number, : len(target)] = torch.tensor(target)
    return inputs, labels


def _of_words(path: Path, *, sequence_length: int) -> Batch:
    """Words with a space between them and padding after each text, and the classes of their first bytes."""
    rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    inputs = torch.full((len(rows), sequence_length), PADDING)
    labels = torch.full_like(inputs, UNLABELED)
    for number, row in enumerate(rows):
        text = " ".join(row["words"]).encode()
        inputs[number, : len(text)] = torch.tensor([*text])
        places = [len(" ".join([*row["words"][:at], ""])) for at in range(len(row["words"]))]
        labels[number, places] = torch.tensor(row["tags"])
    return inputs, labels


def _hidden(tokens: Tensor, *, step: int) -> Batch:
    """The sequences in the order of an epoch, with hidden tokens.

    Both follow from raw numbers of PCG64: the order of sequences is that of one for each, and of three for
    each token, seeded by the sequence's place, the first chooses it and the second says what becomes of it.
    """
    order = np.argsort(_raw([SHUFFLE_SEED, step], len(tokens)), kind="stable")
    inputs, labels = tokens[order].clone(), torch.full_like(tokens, UNLABELED)
    for row, sequence in enumerate(tokens[order].tolist()):
        raw = _raw([SHUFFLE_SEED, step * len(tokens) + row, 0, 1], 3 * len(sequence))
        for at, token in enumerate(sequence):
            choice, fate, other = (int(number) for number in raw[at :: len(sequence)])
            if token < NUM_BYTES and choice / 2**64 < CHOSEN:
                labels[row, at] = token
                if fate / 2**64 < REPLACED:
                    inputs[row, at] = MASK
                elif fate / 2**64 < REPLACED + RANDOM:
                    inputs[row, at] = other % NUM_BYTES
    return inputs, labels


def _raw(seeds: list[int], count: int) -> Any:
    return np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(count)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over all labels."""
    return sum_of(model, batch) / (batch[1] != UNLABELED).sum()


def sum_of(model: nn.Module, batch: Batch) -> Tensor:
    """The sum over the labels of some sequences."""
    inputs, labels = batch
    if labels.ndim == 1:
        # Each text alone: MiniMax's own mask of padding changes what others see.
        texts = [row[row != PADDING][None] for row in inputs]
        logits = torch.cat([model(input_ids=text).logits for text in texts])
        return cross_entropy(logits.float(), labels, reduction="sum")
    if type(model).__name__.endswith(OF_WORDS):
        logits = [
            model(input_ids=row[row != PADDING][None]).logits[0, known[row != PADDING] != UNLABELED]
            for row, known in zip(inputs, labels, strict=True)
        ]
        return cross_entropy(torch.cat(logits).float(), labels[labels != UNLABELED], reduction="sum")
    if type(model).__name__.endswith(WITH_TARGETS):
        # Each input alone: from labels the model makes what its decoder is given.
        means = [
            model(input_ids=row[row != PADDING][None], labels=target[None]).loss * (target != UNLABELED).sum()
            for row, target in zip(inputs, labels, strict=True)
        ]
        return torch.stack(means).sum()
    options = {} if type(model).__name__.endswith(MASKED) else {"use_cache": False}
    logits = model(input_ids=inputs, **options).logits
    return cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def initial(rank: int, world_size: int, folder: Path, dtype: str) -> Initial:
    """What transformers makes of the folder's config.json alone.

    What `from_pretrained` keeps in float32 begins as in a model of float32.
    """
    first, second = (dict(_built(folder, dtype=dtype, seed=seed)) for seed in (1, 2))
    same = {name for name, tensor in first.items() if torch.equal(tensor, second[name])}
    return Initial(
        {name: digest(first[name]) for name in same},
        {name: drawn(tensor) for name, tensor in first.items() if name not in same},
    )


def _built(folder: Path, *, dtype: str, seed: int) -> Iterator[tuple[str, Tensor]]:
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    narrow, wide = (_random(config, dtype=one, seed=seed) for one in (getattr(torch, dtype), torch.float32))
    loaded = dict(tensors_of(_auto(config).from_pretrained(folder, dtype=getattr(torch, dtype))))
    for name, tensor in narrow.items():
        yield name, tensor if tensor.dtype == loaded[name].dtype else wide[name]


def _random(config: PreTrainedConfig, *, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(tensors_of(_auto(config).from_config(config, dtype=dtype)))


def drawn(tensor: Tensor) -> Drawn:
    """What can be said of drawn values."""
    values = tensor.detach().double()
    std = float(values.std(correction=0)) if values.numel() > 1 else math.nan
    return Drawn(str(tensor.dtype), tuple(tensor.shape), float(values.mean()), std)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and every buffer, persistent or not."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def digests_of(model: nn.Module) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in tensors_of(model)}


def digest(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's dtype, shape and bytes."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + values).hexdigest()
