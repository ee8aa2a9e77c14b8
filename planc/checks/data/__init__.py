"""Rules on data: sources, tokenizers, sequences, and batches."""

from __future__ import annotations

from planc.checks.data import (
    batch_indivisible,
    chat_without_template,
    evaluated_on_training,
    evaluation_decides_nothing,
    files_absent,
    held_out_undecided,
    loss_in_parts,
    mixture_malformed,
    pairs_and_loss,
    pairs_divided,
    recurrent_isolated,
    reference_differs,
    sequence_beyond_positions,
    teacher_differs,
    tokenizer_beyond_vocabulary,
    tokenizer_for_pretrained,
    too_long_undecided,
    unknown_data_format,
    unpinned_revision,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    batch_indivisible.check,
    sequence_beyond_positions.check,
    tokenizer_beyond_vocabulary.check,
    tokenizer_for_pretrained.check,
    held_out_undecided.check,
    mixture_malformed.check,
    pairs_and_loss.check,
    pairs_divided.check,
    reference_differs.check,
    teacher_differs.check,
    recurrent_isolated.check,
    chat_without_template.check,
    unpinned_revision.check,
    too_long_undecided.check,
    unknown_data_format.check,
    evaluated_on_training.check,
    evaluation_decides_nothing.check,
    files_absent.check,
    loss_in_parts.check,
)
