"""Pretrained weights that would be trained on ids of another tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity
from planc.plan.data import ByteTokenizer
from planc.plan.spec import Weights

CODE = Code(
    "P735", "bytes-for-pretrained", "the weights were trained on another tokenizer's ids", Severity.WARNING
)

_MAX_BYTE_ROWS = 512
"""Models of bytes have 256 rows, some special tokens, and rows that pad."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at the tokenizer where a model of many tokens is to go on from bytes."""
    plan, rows = subject.plan, subject.inventory.vocab_size
    is_of_tokens = plan.model.weights is Weights.PRETRAINED and rows > _MAX_BYTE_ROWS
    if is_of_tokens and isinstance(plan.data.tokenizer, ByteTokenizer):
        yield CODE.at(
            plan.span("data.tokenizer"),
            f"bytes have 256 of the model's {rows} ids, and other meanings",
            secondary=(Label(plan.span("model.weights"), "trained on the ids of the model's own tokenizer"),),
            help='write `tokenizer = file("...")`, with the tokenizer.json that lies beside the weights',
        )


RULE = Rule((CODE,), check)
