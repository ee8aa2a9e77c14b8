"""Pretrained weights that would be trained on another tokenizer's ids."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.plan.data import ByteTokenizer
from planc.plan.spec import Weights

CODE = Code("P735", "bytes-for-pretrained", "pretrained weights expect another tokenizer", Severity.WARNING)

_MAX_BYTE_ROWS = 512
"""A byte-level model has 256 rows, some for special tokens, and some of padding."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at the tokenizer if a model with a large vocabulary would be trained on bytes."""
    plan, rows = subject.plan, subject.inventory.vocab_size
    is_of_tokens = plan.model.weights is Weights.PRETRAINED and rows > _MAX_BYTE_ROWS
    if is_of_tokens and isinstance(plan.data.tokenizer, ByteTokenizer):
        yield CODE.at(
            plan.span("data.tokenizer"),
            f"bytes would use 256 of the model's {rows} ids, with different meanings",
            secondary=(
                Label(
                    plan.span("model.weights"), "these were trained on the ids of the model's own tokenizer"
                ),
            ),
            help='write `tokenizer = file("...")`, with the tokenizer.json next to the weights',
        )
