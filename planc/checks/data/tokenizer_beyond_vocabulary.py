"""Token ids without a row in the embedding."""

from __future__ import annotations

from typing import assert_never

from planc.checks.data.tokenizer_file import num_token_ids
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.data import ByteTokenizer, FileTokenizer
from planc.vocab import Task

CODE = Code("P705", "tokenizer-beyond-vocabulary", "the tokenizer has more ids than the model")

_BYTE_IDS = {Task.MASKED_LM: 258}
"""The ids of the bytes tokenizer, if a task has a mask next to 256 bytes and the end of a document."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for the bytes tokenizer, or for a tokenizer file that is where the plan says."""
    rows, tokenizer = subject.inventory.vocab_size, subject.plan.data.tokenizer
    ids: int | None
    match tokenizer:
        case ByteTokenizer():
            name, ids = "bytes", _BYTE_IDS.get(subject.plan.model.task.task, 257)
            help = f"use a model with vocab_size of at least {ids}, or write `tokenizer = file(...)`"
        case FileTokenizer(path):
            name, ids = path, num_token_ids(subject.base / path) if subject.base else None
            help = "use the model's own tokenizer.json, or a model with more rows"
        case _:
            assert_never(tokenizer)
    if ids is not None and rows < ids:
        text = f"{name} has {ids} ids; the model has vocab_size = {rows}"
        yield CODE.at(subject.plan.span("data.tokenizer"), text, help=help)
