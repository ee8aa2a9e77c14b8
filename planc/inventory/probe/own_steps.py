"""Trials of a plan's own model class as a step trains it: state, hooks, sequences of a batch, gradients.

No list of models that work has such a class, so a small one shows it. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.attentions import Observed
from planc.inventory.probe.causality import small_of, visible_attentions_of
from planc.inventory.probe.small_attention import token_ids
from planc.inventory.schema import Attention
from planc.vocab import Task

_LENGTH = 19
_LONG = (512, 128, 64, 32)
"""Tokens of a long sequence: the first number that the class runs with. Code may branch on the length."""
_NUM_CUTS = 9
_LIMIT = 1e-4
"""The relative change of logits that is more than rounding."""


def steady_attentions_of(observed: Observed, task: Task) -> tuple[Attention, ...]:
    """The attentions that call transformers' interface. InventoryError if the class fails a trial."""
    _require_steady(observed)
    return visible_attentions_of(observed, task)


def _require_steady(observed: Observed) -> None:
    """InventoryError for a class whose step would differ between meshes, or raise an error.

    A class that can't be made small shows nothing here; `own_attentions_of` refuses it.
    """
    model, name = observed.model, type(observed.model).__name__
    if refusal := next(_refusals_of_tensors(model), None):
        raise InventoryError(f"{refusal[0]} of {name} {refusal[1]}", help=refusal[2])
    try:
        small = small_of(observed)
        logits = None if small is None else _logits(small, token_ids(small, length=_LENGTH))
    except Exception:  # a class may raise anything for sizes that it does not expect
        return
    if small is not None and logits is not None:
        _require_same_again(small, logits, name)
        _require_apart(small, logits, name)
        _require_gradients(small, name)
        _require_causal(small, name)


def _refusals_of_tensors(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    for fqn, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield (
                f"the parameter `{fqn}`",
                "has a hook on its gradient, and a run shards parameters into others, without hooks",
                "scale or change what the parameter computes in `forward`, such as "
                "`weight * 0.1 + weight.detach() * 0.9`",
            )
        if not parameter.ndim:
            yield (
                f"the parameter `{fqn}`",
                "has no dimension, and FSDP shards the first one",
                "give it one element, as `torch.ones(1)` has",
            )
    first: dict[int, str] = {}
    for fqn, module in model.named_modules(remove_duplicate=False):
        if first.setdefault(id(module), fqn) != fqn:
            yield (
                f"the module `{fqn}`",
                f"is `{first[id(module)]}` again, and planc lays out each module once",
                "build a module for each place",
            )
    for fqn, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            for option, reason in _OPTIONS.items():
                if getattr(module, option, None):
                    yield f"the embedding `{fqn}`", f"has `{option}`, {reason}", f"leave out `{option}`"


_OPTIONS = {
    "sparse": "whose gradients can't be summed over ranks or clipped",
    "scale_grad_by_freq": "which counts tokens in a micro-batch, and its sequences differ between meshes",
    "max_norm": "which writes to the weight in each forward, and with FSDP to a copy of it",
}


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)["logits"]
    return output


def _change(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-12))


def _require_same_again(small: PreTrainedModel, logits: Tensor, name: str) -> None:
    """The second and third forward, in training: what the first one computes once may stay."""
    ids = token_ids(small, length=_LENGTH)
    trained = deepcopy(small).train()
    before = {fqn: buffer.clone() for fqn, buffer in trained.named_buffers()}
    _logits(trained, ids)
    changed = [
        fqn
        for fqn, buffer in trained.named_buffers()
        if fqn in before and buffer.shape == before[fqn].shape and not torch.equal(buffer, before[fqn])
    ]
    if changed:
        raise InventoryError(
            f"the forward of {name} changes its buffer `{changed[0]}`: ranks see other sequences, and would "
            "train other models",
            help="compute the value in `forward` from its inputs, or make it a parameter",
        )
    if _change(logits, _logits(small, ids)) > _LIMIT:
        raise InventoryError(
            f"{name} gives other logits when it is called again with the same tokens: its forward draws "
            "random numbers, or keeps state between calls",
            help="remove the draws, and compute everything in `forward` from its inputs and parameters",
        )


def _require_apart(small: PreTrainedModel, logits: Tensor, name: str) -> None:
    alone = _logits(small, token_ids(small, length=_LENGTH)[:1])
    if _change(alone, logits[:1]) > _LIMIT:
        raise InventoryError(
            f"in {name} the logits of a sequence depend on the other sequences of its micro-batch, which "
            "differ between meshes",
            help="compute over tokens and features only, never over the first dimension",
        )


def _require_gradients(small: PreTrainedModel, name: str) -> None:
    ids = token_ids(small, length=_LENGTH)
    trained = deepcopy(small).train()
    output = trained(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)["logits"]
    try:
        torch.autograd.backward([cross_entropy(output.flatten(0, 1), ids.flatten())])
    except Exception as error:  # code may write over what its backward reads
        reason = str(error).partition(" Hint:")[0]
        raise InventoryError(
            f"the backward of {name} fails: {type(error).__name__}: {reason}",
            help="write `a = a + b` in place of `a += b`, and detach nothing that the loss needs",
        ) from error


def _require_causal(small: PreTrainedModel, name: str) -> None:
    """Sequences that differ from one token on, each from another one, have the same logits before it."""
    for length in _LONG:
        ids = token_ids(small, length=length)[:1]
        cuts = [max(1, length * number // (_NUM_CUTS + 1)) for number in range(1, _NUM_CUTS + 1)]
        cuts = [1, 3, *cuts, length - 1]
        changed = ids.repeat(len(cuts), 1)
        for row, cut in enumerate(cuts):
            changed[row, cut:] = ids[0, cut:].roll(1) if cut < length - 1 else ids[0, 0] + 1
        try:
            logits, others = _logits(small, ids)[0], _logits(small, changed)
        except Exception:  # positions may end before
            continue
        if any(_change(logits[:cut], others[row, :cut]) > _LIMIT for row, cut in enumerate(cuts)):
            raise InventoryError(
                f"{name} is not causal: with {length} tokens its logits depend on later ones, "
                "which are the labels",
                help="hide later tokens at every length",
            )
        return
