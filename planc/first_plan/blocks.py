"""The blocks of a first plan that no search chooses, with comments that say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planc.first_plan.brief import Brief
from planc.first_plan.practice import (
    LEAST_STEPS,
    SEQUENCE_LENGTH,
    Purpose,
    Steps,
    practice_of,
    steps_of,
    tokens_for,
    tokens_on,
)
from planc.inventory.adapters import is_adaptable
from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, families
from planc.syntax.write import block, number, rule

_WEIGHTS = {
    Purpose.PRETRAIN: ("New weights from a seed: the same on every mesh.", "random"),
    Purpose.CONTINUE: ("From the model's safetensors; every rank reads its own slices.", "pretrained"),
    **dict.fromkeys(
        (Purpose.CHATS, Purpose.ADAPTERS),
        ("From the model's safetensors; every rank reads its own slices.", "pretrained"),
    ),
}
WHOLE = ("# Conversations share sequences, apart from each other, and stay whole.", "packing = whole")
_MOST_DROPPED = 20 * 10**9
"""Parameters of a model whose adapters drop a tenth, as those of 7B and 13B did."""
_SAVES = 10
"""Checkpoints of a run, at least."""


def sequence_length_of(brief: Brief, inventory: Inventory) -> int:
    """The given length; else Llama 2's, or all positions of a model with fewer."""
    return brief.sequence_length or min(SEQUENCE_LENGTH, inventory.max_positions or SEQUENCE_LENGTH)


def tokens_per_step_of(brief: Brief, inventory: Inventory) -> int:
    """The given tokens; else those of practice, fewer for little data, as whole sequences on every rank."""
    if brief.tokens_per_step is not None:
        return brief.tokens_per_step
    length = sequence_length_of(brief, inventory)
    return tokens_on(brief.devices, wanted=_wanted(brief, inventory), sequence_length=length)


def _wanted(brief: Brief, inventory: Inventory) -> int:
    usual = practice_of(brief.purpose, inventory.num_parameters).tokens_per_step
    least = brief.devices * sequence_length_of(brief, inventory)
    return tokens_for(brief.purpose, wanted=usual, data_bytes=brief.data_bytes, least=least)


def blocks(
    brief: Brief, inventory: Inventory, *, attention: Sequence[str], packing: Sequence[str]
) -> Mapping[str, str]:
    """The text of each block by its kind, in the order of a plan.

    `attention` is lines of `model`, and `packing` of `data`.
    """
    lines_by_kind = {
        "model": [*_model(brief), *attention],
        "adapter": [*_adapter(brief, inventory)],
        "data": [*_data(brief, inventory), *packing, "shuffle_seed = 42"],
        "optimizer": [*_optimizer(brief, inventory)],
        "checkpoint": [*_checkpoint(brief, inventory)],
        "hardware": [f"gpu = {brief.device.name}"] if brief.device is not None else [],
        "train": [*_train(brief, inventory)],
    }
    return {kind: block(kind, lines) for kind, lines in lines_by_kind.items() if lines}


def _model(brief: Brief) -> Iterator[str]:
    why, weights = _WEIGHTS[brief.purpose]
    yield f"hf = {brief.model}"
    yield f"# {why}"
    yield f"weights = {weights}"
    yield from dtype_lines(brief)


def dtype_lines(brief: Brief) -> Iterator[str]:
    """The dtype of the model's weights, with the reason: bfloat16 where they are frozen."""
    if brief.purpose is Purpose.ADAPTERS and brief.device is not None:
        yield "# Frozen weights need no more. FSDP computes in bfloat16; adapters stay float32, as in peft."
        yield "dtype = bfloat16"
        return
    if brief.device is not None:
        yield "# FSDP computes in bfloat16, weights and optimizer stay float32, as torchtitan's defaults."
    yield "dtype = float32"


def adapter_block(brief: Brief, inventory: Inventory) -> str:
    """The block `adapter`; empty for a plan that trains the model's own weights."""
    lines = [*_adapter(brief, inventory)]
    return block("adapter", lines) if lines else ""


def _adapter(brief: Brief, inventory: Inventory) -> Iterator[str]:
    if brief.purpose is not Purpose.ADAPTERS:
        return
    layers = tuple(f"{layer}." for layer in inventory.layers())
    names = [one.fqn for one in inventory.modules if one.fqn.startswith(layers)]
    linear = [fqn for fqn in names if is_adaptable(inventory, fqn)]
    is_large = inventory.num_parameters > _MOST_DROPPED
    yield "# Rank, alpha, dropout and layers as QLoRA."
    yield f"kind = lora(rank = 64, alpha = 16, dropout = {'0.05' if is_large else '0.1'})"
    if brief.device is not None:
        yield "dtype = float32"
    yield from (rule([pattern], "adapted") for pattern in as_patterns(families(inventory, linear)))


def _data(brief: Brief, inventory: Inventory) -> Iterator[str]:
    length = sequence_length_of(brief, inventory)
    why = "Llama 2's length." if length == SEQUENCE_LENGTH else "All positions that the model has."
    yield f"source = {brief.source}"
    yield f"tokenizer = {brief.tokenizer}"
    yield f"# {'As given to planc new.' if brief.sequence_length else why}"
    yield f"sequence_length = {length}"
    yield "micro_batch = 1"


def _optimizer(brief: Brief, inventory: Inventory) -> Iterator[str]:
    usual = practice_of(brief.purpose, inventory.num_parameters)
    steps = _steps(brief, inventory)
    end = "to zero, as Alpaca" if usual.min_factor == 0 else "to a tenth of the peak, as Llama 2"
    decay = number(usual.weight_decay)
    yield f"# {usual.rate_reason} {usual.decay_reason}"
    yield f"kind = adamw(lr = {number(usual.learning_rate)}, betas = {usual.betas}, weight_decay = {decay})"
    yield "# The norm at which GPT-3 and Llama 2 clip."
    yield "clip_grad_norm = 1.0"
    yield f"# A cosine {end}, after {steps.warmup_reason}."
    yield f"schedule = cosine(warmup = {steps.warmup} steps, min_factor = {number(usual.min_factor)})"


def _checkpoint(brief: Brief, inventory: Inventory) -> Iterator[str]:
    yield f"save_every = {max(1, min(1_000, _steps(brief, inventory).number // _SAVES))} steps"
    yield "keep_last = 2"
    yield "# The same command resumes after a stop, on any mesh."
    yield "resume = latest"
    if brief.purpose is Purpose.ADAPTERS:
        yield "# At the end, directories that peft and transformers load: adapters alone, and merged."
        yield 'export "adapter" {}'
        yield 'export "hf" { merged = true, dtype = bfloat16 }'
        return
    yield "# A folder that transformers loads, at the end."
    yield 'export "hf" { dtype = bfloat16 }'


def _train(brief: Brief, inventory: Inventory) -> Iterator[str]:
    steps = _steps(brief, inventory)
    is_given = brief.tokens_per_step is not None
    usual = practice_of(brief.purpose, inventory.num_parameters)
    wanted, reason = _wanted(brief, inventory), usual.tokens_reason
    if wanted < usual.tokens_per_step:
        is_least = wanted == brief.devices * sequence_length_of(brief, inventory)
        part = "One sequence for each rank" if is_least else f"Fewer tokens, for {LEAST_STEPS} steps"
        reason = f"{part}: the data of today are few."
    yield f"# {steps.reason}"
    yield f"steps = {steps.number}"
    yield "loss_chunks = 1"
    yield f"# {brief.tokens_reason if is_given else reason}"
    yield f"tokens_per_step = {tokens_per_step_of(brief, inventory)}"


def _steps(brief: Brief, inventory: Inventory) -> Steps:
    return steps_of(
        brief.purpose,
        num_parameters=inventory.num_parameters,
        tokens_per_step=tokens_per_step_of(brief, inventory),
        data_bytes=brief.data_bytes,
        given=brief.steps,
    )
