"""The blocks of a first plan that no search chooses, with comments that say why."""

from __future__ import annotations

from collections.abc import Mapping

from planc.first_plan.brief import Brief
from planc.first_plan.practice import SEQUENCE_LENGTH, Purpose, Steps, practice_of, steps_of, tokens_on
from planc.inventory.schema import Inventory

_WEIGHTS = {
    Purpose.PRETRAIN: ("New weights from a seed: the same on every mesh.", "random"),
    Purpose.CONTINUE: ("From the model's safetensors; every rank reads its own slices.", "pretrained"),
    Purpose.CHATS: ("From the model's safetensors; every rank reads its own slices.", "pretrained"),
}
WHOLE = "  # Conversations share sequences, apart from each other, and stay whole.\n  packing = whole\n"
_SAVES = 10
"""Checkpoints of a run, at least."""


def sequence_length_of(brief: Brief, inventory: Inventory) -> int:
    """The given length; else Llama 2's, or all positions of a model with fewer."""
    return brief.sequence_length or min(SEQUENCE_LENGTH, inventory.max_positions or SEQUENCE_LENGTH)


def tokens_per_step_of(brief: Brief, inventory: Inventory) -> int:
    """The given tokens; else those of practice, as whole sequences on every rank."""
    if brief.tokens_per_step is not None:
        return brief.tokens_per_step
    wanted = practice_of(brief.purpose, inventory.num_parameters).tokens_per_step
    length = sequence_length_of(brief, inventory)
    return tokens_on(brief.devices, wanted=wanted, sequence_length=length)


def blocks(brief: Brief, inventory: Inventory, *, attention: str, packing: str) -> Mapping[str, str]:
    """The text of each block by its kind, in the order of a plan.

    `attention` is lines of `model`, and `packing` of `data`.
    """
    hardware = f"hardware {{\n  gpu = {brief.device.name}\n}}\n" if brief.device is not None else ""
    found = {
        "model": _model(brief, attention),
        "data": _data(brief, inventory, packing),
        "optimizer": _optimizer(brief, inventory),
        "checkpoint": _checkpoint(brief, inventory),
        "hardware": hardware,
        "train": _train(brief, inventory),
    }
    return {kind: text for kind, text in found.items() if text}


def _model(brief: Brief, attention: str) -> str:
    why, weights = _WEIGHTS[brief.purpose]
    precision = "FSDP computes in bfloat16, weights and optimizer stay float32, as torchtitan's defaults."
    note = f"  # {precision}\n" if brief.device is not None else ""
    settings = f"  hf = {brief.model}\n  # {why}\n  weights = {weights}\n{note}  dtype = float32\n"
    return f"model {{\n{settings}{attention}}}\n"


def _data(brief: Brief, inventory: Inventory, packing: str) -> str:
    length = sequence_length_of(brief, inventory)
    why = "Llama 2's length." if length == SEQUENCE_LENGTH else "All positions that the model has."
    why = "As given to planc new." if brief.sequence_length else why
    return (
        f"data {{\n  source = {brief.source}\n  tokenizer = {brief.tokenizer}\n"
        f"  # {why}\n  sequence_length = {length}\n  micro_batch = 1\n{packing}  shuffle_seed = 42\n}}\n"
    )


def _optimizer(brief: Brief, inventory: Inventory) -> str:
    found = practice_of(brief.purpose, inventory.num_parameters)
    steps = _steps(brief, inventory)
    end = "to zero, as Alpaca" if found.min_factor == 0 else "to a tenth of the peak, as Llama 2"
    return (
        f"optimizer {{\n  # {found.rate_reason} {found.decay_reason}\n"
        f"  kind = adamw(lr = {_number(found.learning_rate)}, betas = {found.betas}, "
        f"weight_decay = {found.weight_decay})\n"
        "  # The norm at which GPT-3 and Llama 2 clip.\n  clip_grad_norm = 1.0\n"
        f"  # A cosine {end}, after {steps.warmup_reason}.\n"
        f"  schedule = cosine(warmup = {steps.warmup} steps, min_factor = {found.min_factor})\n}}\n"
    )


def _checkpoint(brief: Brief, inventory: Inventory) -> str:
    every = max(1, min(1_000, _steps(brief, inventory).number // _SAVES))
    return (
        f"checkpoint {{\n  save_every = {every} steps\n  keep_last = 2\n"
        "  # The same command resumes after a stop, on any mesh.\n  resume = latest\n"
        '  # A folder that transformers loads, at the end.\n  export "hf" { dtype = bfloat16 }\n}\n'
    )


def _train(brief: Brief, inventory: Inventory) -> str:
    steps = _steps(brief, inventory)
    tokens = tokens_per_step_of(brief, inventory)
    reason = practice_of(brief.purpose, inventory.num_parameters).tokens_reason
    if brief.tokens_per_step is not None:
        reason = brief.tokens_reason
    return (
        f"train {{\n  # {steps.reason}\n  steps = {steps.number}\n  loss_chunks = 1\n"
        f"  # {reason}\n  tokens_per_step = {tokens}\n}}\n"
    )


def _steps(brief: Brief, inventory: Inventory) -> Steps:
    return steps_of(
        brief.purpose,
        num_parameters=inventory.num_parameters,
        tokens_per_step=tokens_per_step_of(brief, inventory),
        data_bytes=brief.data_bytes,
        given=brief.steps,
    )


def _number(value: float) -> str:
    """`3e-4`, as plans write it."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
