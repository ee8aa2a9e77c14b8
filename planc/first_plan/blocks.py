"""The blocks of a first plan that no search chooses, with comments that say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from planc.first_plan.brief import Brief
from planc.first_plan.practice import (
    LEAST_STEPS,
    UNKNOWN_STEPS,
    Length,
    length_of,
    practice_of,
    tokens_for,
    tokens_on,
)
from planc.first_plan.purpose import Purpose
from planc.first_plan.recipes import recipe_of
from planc.inventory.adapters import is_adaptable
from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, families
from planc.plan.attention_calls import sees_later_tokens
from planc.syntax.write import block, number, quoted, rule
from planc.vocab import CLASSIFIERS, Task

WHOLE = ("# Conversations share sequences, apart from each other, and stay whole.", "packing = whole")
_MOST_DROPPED = 20 * 10**9
"""Parameters of a model whose adapters drop a tenth, as those of 7B and 13B did."""
_SAVES = 10
"""Checkpoints of a run, at least."""


_PAIRS_IN_A_GROUP = (64, 32, 16, 8, 4, 2)


def sequence_length_of(brief: Brief, inventory: Inventory) -> int:
    """The given length; else that of practice, or all positions of a model with fewer."""
    usual = int(recipe_of(brief.purpose).length.number)
    if brief.sequence_length is not None or inventory.max_positions is None:
        return brief.sequence_length or usual
    # The embeddings of RoBERTa and its kin begin with rows that no token has.
    return min(usual, inventory.max_positions - inventory.positions.first)


def unit_of(brief: Brief, inventory: Inventory) -> int:
    """The tokens that a rank has at least: of a sequence, of both of a pair, or of a group of pairs."""
    length = sequence_length_of(brief, inventory)
    if brief.purpose is Purpose.EMBEDDING:
        return 2 * _group(brief, length) * length
    return recipe_of(brief.purpose).sequences_per_row * length


def tokens_per_step_of(brief: Brief, inventory: Inventory) -> int:
    """The given tokens; else those of practice, fewer for little data, as whole sequences on every rank."""
    if brief.tokens_per_step is not None:
        return brief.tokens_per_step
    return tokens_on(brief.devices, wanted=_wanted(brief, inventory), unit=unit_of(brief, inventory))


def _wanted(brief: Brief, inventory: Inventory) -> int:
    usual = practice_of(brief.purpose, inventory.num_parameters).tokens_per_step
    of_data = _data_tokens(brief, inventory)
    least = brief.devices * unit_of(brief, inventory)
    return tokens_for(brief.purpose, wanted=usual, of_data=of_data, least=least)


def _data_tokens(brief: Brief, inventory: Inventory) -> int:
    return brief.data.tokens(brief.purpose, sequence_length_of(brief, inventory))


def _group(brief: Brief, length: int) -> int:
    """The pairs that are compared: as many as a rank has in a step of so many tokens, or of so few rows."""
    pairs = _PAIRS_IN_A_GROUP[0]
    if brief.tokens_per_step is not None:
        pairs = brief.tokens_per_step // (2 * length * brief.devices)
    elif brief.data.num_rows:
        pairs = min(pairs, brief.data.num_rows // brief.devices)
    return next((size for size in _PAIRS_IN_A_GROUP if size <= pairs and pairs % size == 0), 2)


def blocks(
    brief: Brief, inventory: Inventory, *, in_model: Sequence[str], packing: Sequence[str]
) -> Mapping[str, str]:
    """The text of each block by its kind, in the order of a plan.

    `in_model` is lines of `model`, and `packing` of `data`.
    """
    lines_by_kind = {
        "model": [*_model(brief), *dtype_lines(brief), *task_lines(brief, inventory), *in_model],
        "adapter": [*_adapter(brief, inventory)],
        "data": [*_data(brief, inventory), *packing, "shuffle_seed = 42"],
        "optimizer": [*_optimizer(brief, inventory)],
        "checkpoint": [*_checkpoint(brief, inventory)],
        "hardware": [f"gpu = {brief.device.name}"] if brief.device is not None else [],
        "train": [*_train(brief, inventory)],
    }
    return {kind: block(kind, lines) for kind, lines in lines_by_kind.items() if lines}


def _model(brief: Brief) -> Iterator[str]:
    yield f"hf = {brief.model}"
    if brief.purpose.has_new_weights:
        yield "# New weights from a seed: the same on every mesh."
        yield "weights = random"
    else:
        yield "# From the model's safetensors; every rank reads its own slices."
        yield "weights = pretrained"


def dtype_lines(brief: Brief) -> Iterator[str]:
    """The dtype of the model's weights, with the reason: bfloat16 where they are frozen."""
    if brief.purpose is Purpose.ADAPTERS and brief.device is not None:
        yield "# Frozen weights need no more. FSDP computes in bfloat16; adapters stay float32, as in peft."
        yield "dtype = bfloat16"
        return
    if brief.device is not None:
        yield "# FSDP computes in bfloat16, weights and optimizer stay float32, as torchtitan's defaults."
    yield "dtype = float32"


def task_lines(brief: Brief, inventory: Inventory) -> Iterator[str]:
    """The task of the model, unless it is the usual one, with the reason for what it leaves open."""
    task = str(brief.purpose.task)
    if brief.purpose.task in CLASSIFIERS:
        names = ", ".join(quoted(name) for name in brief.class_names)
        yield "# The classes of the rows."
        yield f"task = {task}(labels = {brief.num_classes}{f', names = [{names}]' if names else ''})"
    elif brief.purpose is Purpose.EMBEDDING:
        yield "# As sentence-transformers, or as E5 Mistral: a decoder's last token alone sees all others."
        yield f"task = {task}(pooling = {'last' if not sees_later_tokens(inventory) else 'mean'})"
    elif brief.purpose is Purpose.IMAGE_TEXT_TO_TEXT:
        yield "# The size to which images are scaled: more pixels take more tokens of a sequence."
        yield f"task = {task}(height = 448, width = 448)"
    elif brief.purpose.task is not Task.CAUSAL_LM:
        yield f"task = {task}"


def loss_lines(brief: Brief, inventory: Inventory) -> Iterator[str]:
    """The loss of `train`, unless it is the usual one."""
    if brief.purpose is Purpose.PREFERENCES:
        yield "# As DPO's paper and Tulu 2."
        yield "loss = dpo(beta = 0.1)"
    elif brief.purpose is Purpose.EMBEDDING:
        yield "# SimCSE's temperature. Larger groups have more negatives, and take more memory."
        group = _group(brief, sequence_length_of(brief, inventory))
        yield f"loss = contrastive(temperature = 0.05, group = {group})"
    elif brief.purpose is Purpose.SEQ2SEQ_LM:
        yield "# As BART on CNN/DailyMail."
        yield "loss = cross_entropy(label_smoothing = 0.1)"


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
    usual = recipe_of(brief.purpose).length
    why = f"{usual.source}'s length." if length == usual.number else "All positions that the model has."
    yield f"source = {brief.source}"
    yield f"tokenizer = {brief.tokenizer}"
    yield f"# {'As given to planc new.' if brief.sequence_length else why}"
    yield f"sequence_length = {length}"
    yield f"micro_batch = {unit_of(brief, inventory) // length}"


def _optimizer(brief: Brief, inventory: Inventory) -> Iterator[str]:
    usual = practice_of(brief.purpose, inventory.num_parameters)
    recipe, length = usual.recipe, _length(brief, inventory)
    name = "A cosine" if recipe.schedule == "cosine" else "A line"
    end = "to zero" if recipe.min_factor == 0 else "to a tenth of the peak"
    if recipe.end_source != recipe.warmup.source:
        end += f", as {recipe.end_source}"
    lr, decay = number(usual.learning_rate), number(recipe.weight_decay)
    yield f"# {usual.rate_reason} {recipe.decay_reason}"
    yield f"kind = adamw(lr = {lr}, betas = {recipe.betas}, weight_decay = {decay})"
    yield "# The norm at which GPT-3 and Llama 2 clip."
    yield "clip_grad_norm = 1.0"
    yield f"# {name} {end}, after {length.warmup_reason}."
    least = f", min_factor = {number(recipe.min_factor)}" if recipe.schedule == "cosine" else ""
    yield f"schedule = {recipe.schedule}(warmup = {length.warmup}{least})"


def _checkpoint(brief: Brief, inventory: Inventory) -> Iterator[str]:
    length, tokens = _length(brief, inventory), tokens_per_step_of(brief, inventory)
    about = ceil(length.epochs * _data_tokens(brief, inventory) / tokens)
    steps = length.steps or about or UNKNOWN_STEPS
    yield f"save_every = {max(1, min(1_000, steps // _SAVES))} steps"
    yield "keep_last = 2"
    yield "# The same command resumes after a stop, on any mesh."
    yield "resume = latest"
    if brief.purpose is Purpose.ADAPTERS:
        yield "# At the end, directories that peft and transformers load: adapters alone, and merged."
        yield 'export "adapter" {}'
        yield 'export "hf" { merged = true, dtype = bfloat16 }'
        return
    yield "# A folder that transformers loads, at the end."
    is_generator = brief.purpose.task in (Task.CAUSAL_LM, Task.IMAGE_TEXT_TO_TEXT)
    yield 'export "hf" { dtype = bfloat16 }' if is_generator else 'export "hf" {}'


def _least_of(brief: Brief) -> str:
    """The words for what a rank has at least, of `unit_of` tokens."""
    if brief.purpose is Purpose.EMBEDDING:
        return "One group of pairs"
    return "One pair" if recipe_of(brief.purpose).sequences_per_row > 1 else "One sequence"


def _train(brief: Brief, inventory: Inventory) -> Iterator[str]:
    length = _length(brief, inventory)
    is_given = brief.tokens_per_step is not None
    usual = practice_of(brief.purpose, inventory.num_parameters)
    wanted, reason = _wanted(brief, inventory), usual.tokens_reason
    if wanted < usual.tokens_per_step:
        is_least = wanted == brief.devices * unit_of(brief, inventory)
        part = f"{_least_of(brief)} for each rank" if is_least else f"Fewer tokens, for {LEAST_STEPS} steps"
        reason = f"{part}: the data of today are few."
    yield f"# {length.reason}"
    yield f"epochs = {length.epochs}" if length.epochs else f"steps = {length.steps}"
    yield from loss_lines(brief, inventory)
    yield "loss_chunks = 1"
    yield f"# {brief.tokens_reason if is_given else reason}"
    yield f"tokens_per_step = {tokens_per_step_of(brief, inventory)}"


def _length(brief: Brief, inventory: Inventory) -> Length:
    return length_of(
        brief.purpose,
        num_parameters=inventory.num_parameters,
        tokens_per_step=tokens_per_step_of(brief, inventory),
        data_tokens=_data_tokens(brief, inventory),
        given=brief.steps,
    )
