"""Train in one process with transformers and torch only: the reference for every mesh.

It uses planc's initial parameters with noise on each, packed tokens and order of samples, but none of its
runtime: attention is transformers' eager one; loss, accumulation and schedule are implemented here a second
time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from planc.extend.reference import Extension
from planc.plan import optimizer as spec
from planc.plan.optimizer import kind_of
from planc.plan.train import Contrastive, CrossEntropy, Distillation, Preference
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.torch.weights.adapters import fill_adapters
from planc.runtime.torch.weights.factory import config_in, own_class
from planc.runtime.torch.weights.nf4 import VALUES
from planc.runtime.torch.weights.weights import initialize
from planc.verify.adapted import adapt_layer
from planc.verify.experts import Routes, limit_tokens
from planc.verify.images import loss_of_images, with_encoder
from planc.verify.losses import (
    UNLABELED,
    Preferences,
    Taught,
    Text,
    contrastive_loss,
    loss_of_classes,
    loss_of_targets,
    made_up,
    masked_batch,
    texts_of,
)
from planc.verify.optimizers import Muon, OwnUpdates, StoredAdam
from planc.verify.perturb import constants, perturb, perturb_tensor, saved_tensors
from planc.verify.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Training:
    """One process's results: losses, gradient norms and sample ids per step; tensors by parameter name."""

    losses: tuple[float, ...]
    balances: tuple[float, ...]
    """The sums of what balances experts, if anything does."""
    grad_norms: tuple[float, ...]
    learning_rates: tuple[tuple[float, ...], ...]
    """The distinct learning rates of parameters, in rising order."""
    sample_ids: tuple[tuple[int, ...], ...]
    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """The gradients of the first step, before clipping."""
    final: dict[str, Tensor]
    """Parameters, and moving averages of those that are trained as `ema.<name>`."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """The initial buffers, as transformers itself fills them while it builds it, saved ones with noise."""


def train(recipe: Recipe, *, attention: Literal["eager", "sdpa"] = "eager") -> Training:
    """The first steps of a recipe in one process, with every gradient of the first one.

    Every model has eager attention, whose softmax always computes in float32; that of `sdpa`
    does not.
    """
    torch.manual_seed(0)
    model = _built(recipe, attention)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    initialize(model, seed=recipe.seed)
    _adapt(model, recipe)
    _fill(model, recipe)
    saved = saved_tensors(model)
    for name in saved.keys() & buffers.keys():
        perturb_tensor(name, buffers[name], seed=recipe.seed)
    assert not (found := [*constants(saved)]), f"constant, so faults would not show: {', '.join(found[:3])}"
    model.train()
    for name in recipe.frozen:
        model.get_parameter(name).requires_grad_(False)
    initial, averages = snapshot(model), _averages(model) if recipe.ema_decay is not None else {}
    data = open_data(recipe.data, base=recipe.base, model_vocab_size=_vocab_size(model))
    optimizers = _optimizers(model, recipe)
    schedules = [LambdaLR(optimizer, lambda done: factor(recipe, step=done + 1)) for optimizer in optimizers]
    routes = Routes(model, recipe.balance, num_sequences=recipe.global_batch) if recipe.balance else None
    moved = dict(routes.biases.values()) if routes else {}
    initial |= {name: bias.detach().clone() for name, bias in moved.items()}
    loss_of = _loss_of(model, data, routes, recipe)
    losses, balances, norms, rates, ids, gradients = [], [], [], [], [], {}
    for step in range(recipe.num_steps):
        sample_ids = data.order.sample_ids(step * recipe.global_batch, count=recipe.global_batch)
        loss = loss_of(sample_ids, step * recipe.global_batch)
        added = torch.stack(routes.losses()).sum() if routes else torch.zeros(())
        (loss + added).backward()  # type: ignore[no-untyped-call]
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        limit = math.inf if recipe.clip_grad_norm is None else recipe.clip_grad_norm
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit)))
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates.append(tuple(sorted({float(group["lr"]) for group in groups})))
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        averages = _moved(averages, model, decay=recipe.ema_decay or 0.0)
        if routes is not None:
            routes.move_biases()
        losses.append(loss.item())
        balances.extend([added.item()] if routes and routes.adds_losses else [])
        ids.append(tuple(int(i) for i in sample_ids))
    return Training(
        losses=tuple(losses),
        balances=tuple(balances),
        grad_norms=tuple(norms),
        learning_rates=tuple(rates),
        sample_ids=tuple(ids),
        initial=initial,
        gradients=gradients,
        final=snapshot(model) | moved | averages,
        buffers=buffers,
    )


def _averages(model: nn.Module) -> dict[str, Tensor]:
    """Moving averages of trained weights, before the first step."""
    named = model.named_parameters()
    return {f"ema.{name}": weight.detach().clone() for name, weight in named if weight.requires_grad}


def _moved(averages: dict[str, Tensor], model: nn.Module, *, decay: float) -> dict[str, Tensor]:
    weights = snapshot(model)
    return {
        name: decay * average + (1 - decay) * weights[name.removeprefix("ema.")]
        for name, average in averages.items()
    }


def _adapt(model: nn.Module, recipe: Recipe) -> None:
    """Let linear layers compute `(W + scale * B A) x + b`, and experts take no more than their capacity."""
    for name in recipe.capped:
        assert recipe.capacity is not None, "capped experts have a capacity"
        limit_tokens(model.get_submodule(name), capacity=recipe.capacity, length=recipe.data.sequence_length)
    for name in recipe.adapted:
        assert recipe.adapter is not None, "layers with adapters have them of a kind"
        adapt_layer(model.get_submodule(name), recipe.adapter)


def _fill(model: nn.Module, recipe: Recipe) -> None:
    """Add noise to weights; those in 4 bits are rounded as they are drawn. Then fill adapters, with noise."""
    perturb(model, seed=recipe.seed, apart=[f"{name}.weight" for name in recipe.quantized])
    for name in recipe.quantized:
        _round(model.get_submodule(name), block=recipe.block)
    fill_adapters(model, recipe.adapted, seed=recipe.seed)
    perturb(model, seed=recipe.seed, within=recipe.adapted)


@torch.no_grad()
def _round(layer: Any, *, block: int) -> None:
    """Round a weight to NF4: to the nearest of 16 shares of the largest magnitude of each block of a row."""
    blocks = layer.weight.float().unflatten(1, (-1, block))
    largest = blocks.abs().amax(2, keepdim=True)
    values = torch.tensor(VALUES)
    nearest = (blocks / largest).unsqueeze(3).sub(values).abs().argmin(3)
    layer.weight.copy_((values[nearest] * largest).flatten(1))


def _built(recipe: Recipe, attention: Literal["eager", "sdpa"]) -> Any:
    """The model as transformers or the plan's own class builds it, with weights of its own."""
    dtype = getattr(torch, recipe.dtype)
    if recipe.own is not None:
        own = own_class(recipe.own, base=recipe.base, is_allowed=True)
        return own._from_config(config_in(recipe.base / recipe.model, own), dtype=dtype)
    folder, data = recipe.base / recipe.model, recipe.data
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    head = "ForCausalLM" if data.masking is None else "ForMaskedLM"
    if recipe.pooling is not None:
        head = ""
    elif data.has_targets:
        head = "ForSeq2SeqLM"
    elif data.has_classes:
        head = "ForTokenClassification" if data.by_word else "ForSequenceClassification"
    elif "vision_config" in config.to_dict():
        head = "ForImageTextToText"
    kind = getattr(transformers, f"AutoModel{head}")
    model = kind.from_config(config, dtype=dtype, attn_implementation=attention, trust_remote_code=False)
    if recipe.pooling is not None and hasattr(model, "pooler"):
        model.pooler = None
    if data.images is not None:
        with_encoder(model, folder)
    elif head == "ForImageTextToText":
        del model.model.visual
    if dtype is torch.float64:
        # PyTorch's grouped products, which transformers takes by default, have no float64.
        model.set_experts_implementation("eager")
    return model


def _vocab_size(model: Any) -> int:
    size: int = model.get_input_embeddings().num_embeddings
    return size


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters by name, tied ones once."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


ValuesOf = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The value of each token, of logits [texts, length, vocabulary], labels and tokens, both [texts, length]."""
ValuesOfTexts = Callable[[Tensor, Sequence[Text]], Tensor]
"""The same of texts of one length."""


def _cross_entropy(kind: CrossEntropy | None, logits: Tensor, labels: Tensor, tokens: Tensor) -> Tensor:
    smoothing, z_loss = (kind.label_smoothing, kind.z_loss) if kind is not None else (0.0, 0.0)
    logits = logits.flatten(0, 1)
    plain = cross_entropy(logits, labels.flatten(), reduction="none", label_smoothing=smoothing)
    return plain + z_loss * logits.logsumexp(-1) ** 2 if z_loss else plain


def _values_of(recipe: Recipe) -> ValuesOf:
    """Cross entropy, or the plan's own loss, which is called by all tokens of equally long texts at once."""
    if not isinstance(recipe.loss, Extension):
        return partial(_cross_entropy, recipe.loss if isinstance(recipe.loss, CrossEntropy) else None)
    function = load_extension(recipe.loss, base=recipe.base, is_allowed=True)
    given = arguments_of(recipe.loss)
    known = inspect.signature(function).parameters

    def values_of(logits: Tensor, labels: Tensor, tokens: Tensor) -> Tensor:
        places = recipe.first_position + torch.arange(tokens.shape[1]).expand_as(tokens)
        offered = {"input_ids": tokens.flatten(), "position_ids": places.flatten()}
        wanted = {name: value for name, value in offered.items() if name in known}
        values: Tensor = function(logits.flatten(0, 1), labels.flatten(), **wanted, **given)
        return values

    return values_of


def _loss_of(
    model: Any, data: OpenData, routes: Routes | None, recipe: Recipe
) -> Callable[[np.ndarray, int], Tensor]:
    """The mean loss of samples, as a function of their numbers and of the place of the first in the order."""
    if isinstance(recipe.loss, Preference):
        pairs = Preferences(model, data.dataset, recipe.loss)
        return lambda ids, place: pairs.loss(ids)
    if isinstance(recipe.loss, Contrastive) and (pooling := recipe.pooling) is not None:
        contrast = recipe.loss
        return lambda ids, place: contrastive_loss(model, data.dataset, ids, contrast, pooling)
    values_of, masking = _values_of(recipe), recipe.data.masking
    if (images := recipe.data.images) is not None:
        folder = recipe.base / recipe.model
        return lambda ids, place: loss_of_images(model, data.dataset, ids, images, folder, values_of)
    if recipe.data.has_targets:
        return lambda ids, place: loss_of_targets(model, data.dataset, ids, values_of)
    if recipe.data.has_classes:
        return lambda ids, place: loss_of_classes(model, data.dataset, ids, values_of)
    if masking is not None:

        def masked_loss(ids: np.ndarray, place: int) -> Tensor:
            tokens = [text.tokens[:-1] for text in texts_of(data, ids, recipe.data)]
            inputs, labels = masked_batch(tokens, masking, seed=recipe.data.shuffle_seed, first=place)
            return _masked_loss(model, inputs, labels, values_of)

        return masked_loss
    if isinstance(recipe.loss, Distillation):
        taught = Taught(recipe.loss, made_up(data.dataset, recipe.loss.top_k, _vocab_size(model)))
        values_of_texts = taught.values_of
    else:
        values_of_texts = partial(_by_tokens, values_of)
    apart = bool(recipe.capped)
    return lambda ids, place: _loss(model, texts_of(data, ids, recipe.data), routes, values_of_texts, apart)


def _by_tokens(values_of: ValuesOf, logits: Tensor, texts: Sequence[Text]) -> Tensor:
    tokens = torch.stack([text.tokens for text in texts])
    return values_of(logits, tokens[:, 1:], tokens[:, :-1])


def _masked_loss(model: nn.Module, inputs: Tensor, labels: Tensor, values_of: ValuesOf) -> Tensor:
    """The mean over the hidden tokens of sequences."""
    logits = model(input_ids=inputs).logits
    logits = logits if logits.dtype is torch.float64 else logits.float()
    is_label = labels != UNLABELED
    values = values_of(logits[is_label][None], labels[is_label][None], inputs[is_label][None])
    return values.sum() / max(1, int(is_label.sum()))


def _loss(
    model: nn.Module, texts: Sequence[Text], routes: Routes | None, values_of: ValuesOfTexts, apart: bool
) -> Tensor:
    """The mean over all tokens but the first of each text. A model sees texts of one length together, without
    any effect on each other; `apart`, each alone."""
    by_length: dict[tuple[int, int], list[Text]] = {}
    for number, text in enumerate(texts):
        by_length.setdefault((len(text.tokens), number if apart else 0), []).append(text)
    total, num_labels = torch.zeros(()), 0
    for (length, _), members in by_length.items():
        tokens = torch.stack([text.tokens for text in members])
        if routes is not None:
            routes.expect([text.sequence for text in members], length=length - 1)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        logits = logits if logits.dtype is torch.float64 else logits.float()
        total = total + values_of(logits, members).sum()
        num_labels += tokens[:, 1:].numel()
    return total / num_labels


def _optimizers(model: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """The optimizer of every parameter, or that of matrices and that of the rest."""
    kind, parts = recipe.optimizer, dict(recipe.matrices)
    named = dict(model.named_parameters())
    if not isinstance(kind, spec.Muon):
        return [_by_torch(kind, named, recipe)]
    matrices = {name: matrix for name, matrix in named.items() if name in parts}
    others = {name: other for name, other in named.items() if name not in parts}
    muon = Muon(
        _groups(kind, matrices, recipe),
        momentum=kind.momentum,
        nesterov=kind.nesterov,
        ns_steps=kind.ns_steps,
        lr_scale=kind.lr_scale,
        parts={matrix: parts[name] for name, matrix in matrices.items() if parts[name]},
    )
    return [
        muon,
        _by_torch(kind.rest, others, recipe),
    ]


def _by_torch(kind: spec.Optimizer, parameters: Mapping[str, nn.Parameter], recipe: Recipe) -> Optimizer:
    case = kind_of(kind)
    arguments = {name: getattr(kind, name) for name in case.argument_names()}
    groups = _groups(kind, parameters, recipe)
    if isinstance(kind, spec.OwnOptimizer):
        return OwnUpdates(groups, kind, base=recipe.base)
    if isinstance(kind, spec.AdamW8bit | spec.AdamWBf16):
        return StoredAdam(groups, kind, names={parameter: name for name, parameter in parameters.items()})
    built: Optimizer = getattr(torch.optim, case.torch_class)(groups, lr=kind.lr, **arguments)
    return built


def _groups(
    kind: spec.Optimizer, parameters: Mapping[str, nn.Parameter], recipe: Recipe
) -> list[dict[str, Any]]:
    decays, rates = dict(recipe.decays), dict(recipe.rates)
    return [
        {
            "params": [parameter],
            "weight_decay": decays.get(name, kind.weight_decay),
            "lr": rates.get(name, kind.lr),
        }
        for name, parameter in parameters.items()
    ]


def factor(recipe: Recipe, *, step: int) -> float:
    """The fraction of the peak learning rate: rising in `warmup` steps, then falling to `min_factor`."""
    schedule = recipe.schedule
    if isinstance(schedule, spec.OwnSchedule):
        function = load_extension(schedule.extension, base=recipe.base, is_allowed=True)
        offered = {"num_steps": recipe.total_steps}
        known = {
            name: value for name, value in offered.items() if name in inspect.signature(function).parameters
        }
        # LambdaLR asks for the step after the last too, which the function need not know.
        asked = min(step, recipe.total_steps)
        return float(function(asked, **known, **arguments_of(schedule.extension)))
    warmup = schedule.warmup
    assert isinstance(warmup, int), "a recipe counts steps"
    if step <= warmup:
        return step / warmup
    if isinstance(schedule, spec.Constant):
        return 1.0
    start = (
        recipe.total_steps - int(schedule.decay) if isinstance(schedule, spec.WarmupStableDecay) else warmup
    )
    if step <= start:
        return 1.0
    progress: float = min(1.0, (step - 1 - start) / max(1, recipe.total_steps - start))
    if isinstance(schedule, spec.Cosine):
        progress = (1.0 - math.cos(math.pi * progress)) / 2.0
    lowest: float = schedule.min_factor
    return 1.0 - (1.0 - lowest) * progress
