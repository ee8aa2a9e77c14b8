"""Whether a model's logits depend on later tokens, tried on a small one. Imports torch, for the probe.

Those of a causal language model must not, and those of a masked one must. Those of a classifier must not
depend on padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.attention_calls import attention_to_self
from planc.inventory.probe.attentions import Observed, attentions_of
from planc.inventory.probe.small_attention import MAX_LAYERS, small_config, small_model, token_ids
from planc.inventory.schema import Attention
from planc.modeling.decoder_inputs import decoder_inputs
from planc.modeling.tasks import output_of, task_of
from planc.vocab import IGNORED_LABEL, SEES_LATER_TOKENS, Task

_LENGTH, _NUM_CHANGED = 16, 4
"""Tokens of a sequence, and those at its end that differ in the second forward."""
_LIMIT = 1e-4
"""The relative change that is more than rounding: of the models of transformers, causal ones stay below 1e-6,
and others are above 1e-3."""
_PADDING = 3
"""The padding token of a small model whose own is not in its vocabulary."""


def visible_attentions_of(observed: Observed, task: Task) -> tuple[Attention, ...]:
    """The attentions that call transformers' interface.

    InventoryError if tokens see others than the task has it.
    """
    attentions = attentions_of(observed)
    name = type(observed.model).__name__
    match task:
        case Task.CAUSAL_LM | Task.IMAGE_TEXT_TO_TEXT:
            # Attention that asks for later tokens by itself is reported by a check.
            asks = any(SEES_LATER_TOKENS.intersection(one.extras) for one in attentions)
            if not asks and _sees_later_tokens(observed):
                raise InventoryError(
                    f"{name} is not causal: its logits depend on later tokens, which are the labels",
                    help="use a causal language model; if config.json has a switch for its attention, such "
                    "as `is_decoder`, set it to causal",
                )
        case Task.MASKED_LM:
            causal = [one.fqn for one in attentions if not SEES_LATER_TOKENS.intersection(one.extras)]
            if causal or _sees_later_tokens(observed) is False:
                where = f"`{causal[0]}` hides" if causal else "it hides"
                raise InventoryError(
                    f"{name} is not an encoder: {where} later tokens, and a masked language model needs them",
                    help="if config.json has a switch for it, such as `is_decoder`, set it to false",
                )
        case Task.SEQ2SEQ_LM:
            _refuse_unknown_decoding(observed)
        case Task.SEQUENCE_CLASSIFICATION | Task.TOKEN_CLASSIFICATION | Task.EMBEDDING:
            _refuse_read_padding(observed, attentions)
        case _:
            assert_never(task)
    return attentions


def _refuse_read_padding(observed: Observed, attentions: Sequence[Attention]) -> None:
    """InventoryError if logits follow from padding, or some attentions are to later tokens and some are not.

    A model with attention to later tokens is tried with attention to each token itself: planc hides padding
    from it. Any other keeps its own. One that can't be made small shows nothing, and is refused.
    """
    name, help = type(observed.model).__name__, "use another model for this task"
    kinds = {not SEES_LATER_TOKENS.isdisjoint(attention.extras) for attention in attentions}
    if len(kinds) > 1:
        raise InventoryError(f"{name} has attention to later tokens in some layers only", help=help)
    try:
        tiny = small_of(observed)
        change = None if tiny is None else _change_by_padding(tiny, is_hidden=True in kinds)
    except Exception as error:  # a class may raise anything for sizes that it does not expect
        raise InventoryError(f"{name} has not been run with padding: {error}", help=help) from error
    if change is None or change > _LIMIT:
        raise InventoryError(f"{name} reads padding: logits follow from tokens after a text", help=help)


_AFTER_PADDING = 4
"""Ignored labels at the end of a target that is tried."""


def _refuse_unknown_decoding(observed: Observed) -> None:
    """InventoryError unless a small model of the kind trains as planc has it.

    From labels the class makes the decoder's tokens that planc does. Logits follow neither from later ones
    nor from padding after an input, and do follow from the input.
    """
    name, help = type(observed.model).__name__, "use another encoder-decoder, such as BART"
    try:
        small = small_of(observed)
        wrong = "can't be made small" if small is None else _wrong_decoding(small)
    except Exception as error:  # a class may raise anything for sizes that it does not expect
        raise InventoryError(f"{name} has not been run with targets: {error}", help=help) from error
    if wrong:
        raise InventoryError(f"{name} {wrong}", help=help)


def _wrong_decoding(model: PreTrainedModel) -> str:
    """The difference to planc's decoding; empty for none."""
    inputs, labels = token_ids(model, length=_LENGTH), token_ids(model, length=_LENGTH).flip(1)
    labels[:, -_AFTER_PADDING:] = IGNORED_LABEL
    start, padding = model.config.decoder_start_token_id, model.config.pad_token_id
    given = decoder_inputs(labels, start=start, padding=padding)
    seen = torch.ones_like(inputs)

    def logits(ids: torch.Tensor, mask: torch.Tensor, **decoder: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return output_of(model(input_ids=ids, attention_mask=mask, use_cache=False, **decoder))

    alone = logits(inputs, seen, decoder_input_ids=given)
    largest = alone.abs().max()

    def differ(other: torch.Tensor, places: slice) -> bool:
        return bool((alone[:, places] - other[:, places]).abs().max() > _LIMIT * largest)

    targets = slice(0, _LENGTH - _AFTER_PADDING)
    later = given.clone()
    later[:, targets.stop :] = inputs[:, :_AFTER_PADDING]
    padded, hidden = pad(inputs, (0, _NUM_CHANGED), value=padding), pad(seen, (0, _NUM_CHANGED))
    if differ(logits(inputs, seen, labels=labels), targets):
        return "gives its decoder other tokens than the start token and the labels before each"
    if differ(logits(inputs, seen, decoder_input_ids=later), targets):
        return "is not causal: a target's logits depend on later tokens"
    if differ(logits(padded, hidden, decoder_input_ids=given), targets):
        return "reads padding: logits follow from tokens after an input"
    if not differ(logits(inputs.flip(1), seen, decoder_input_ids=given), targets):
        return "does not read its input"
    return ""


def _change_by_padding(model: PreTrainedModel, *, is_hidden: bool) -> float:
    """Measure the change of a text's logits by padding after it, relative to the largest logit.

    Attention sees it unless it `is_hidden`.
    """
    padding = getattr(model.config, "pad_token_id", None)
    if not isinstance(padding, int) or not 0 <= padding < model.config.vocab_size:
        padding = model.config.pad_token_id = _PADDING
    ids = token_ids(model, length=_LENGTH)
    padded = pad(ids, (0, _NUM_CHANGED), value=padding)
    with attention_to_self() as implementation, torch.no_grad():
        if is_hidden:
            model.config._attn_implementation = implementation
        alone, with_padding = (output_of(model(input_ids=tokens)) for tokens in (ids, padded))
    if task_of(model) is not Task.SEQUENCE_CLASSIFICATION:
        with_padding = with_padding[:, :_LENGTH]
    return float((alone - with_padding).abs().max() / alone.abs().max())


def _sees_later_tokens(observed: Observed) -> bool | None:
    """Whether a position's logits depend on later tokens; None for a model that can't be made small."""
    try:
        change = None if (tiny := small_of(observed)) is None else _change(tiny)
    except Exception:  # a class may raise anything for sizes that it does not expect
        return None
    return None if change is None else change > _LIMIT


def small_of(observed: Observed) -> PreTrainedModel | None:
    """A small model of the same kind, with a layer of each kind; None without a list of layers.

    Raises what the class does for sizes that it does not expect.
    """
    model = observed.model
    layers = max((model.get_submodule(block) for block in observed.blocks), key=_length, default=None)
    if layers is None:
        return None
    names = {id(module): fqn for fqn, module in model.named_modules()}
    members = enumerate(layers.children())
    kept = [number for number, layer in members if names[id(layer)] not in observed.instead]
    small = small_config(observed.config, layers=kept[:MAX_LAYERS], num_layers=_length(layers))
    return small_model(small, model_class=type(model), dtype=torch.float32)


def _change(model: PreTrainedModel) -> float:
    """Measure the change of earlier logits by the last tokens, relative to the largest logit."""
    ids = token_ids(model, length=_LENGTH)
    other = ids.clone()
    other[:, -_NUM_CHANGED:] = ids[:, :_NUM_CHANGED]
    earlier = slice(None), slice(0, _LENGTH - _NUM_CHANGED)
    with torch.no_grad():
        one, changed = (_logits(model, tokens) for tokens in (ids, other))
    return float((one[earlier] - changed[earlier]).abs().max() / one.abs().max())


def _logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    output: Mapping[str, torch.Tensor] = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
    )
    return output["logits"]


def _length(layers: nn.Module) -> int:
    return len(tuple(layers.children()))
