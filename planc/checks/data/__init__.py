"""Rules on data: sources, tokenizers, sequences, and batches."""

from __future__ import annotations

from planc.checks.data import (
    batch_indivisible,
    bytes_for_pretrained,
    chat_without_template,
    evaluated_on_training,
    files_absent,
    held_out_undecided,
    loss_in_parts,
    mixture_malformed,
    recurrent_isolated,
    sequence_beyond_positions,
    tokenizer_beyond_vocabulary,
    too_long_undecided,
    unknown_data_format,
    unpinned_revision,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    batch_indivisible.RULE,
    sequence_beyond_positions.RULE,
    tokenizer_beyond_vocabulary.RULE,
    bytes_for_pretrained.RULE,
    held_out_undecided.RULE,
    mixture_malformed.RULE,
    recurrent_isolated.RULE,
    chat_without_template.RULE,
    unpinned_revision.RULE,
    too_long_undecided.RULE,
    unknown_data_format.RULE,
    evaluated_on_training.RULE,
    files_absent.RULE,
    loss_in_parts.RULE,
)
