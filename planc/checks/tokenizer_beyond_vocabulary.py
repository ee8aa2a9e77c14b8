"""Token ids without a row in the embedding."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.spec import ByteTokenizer

CODE = Code("P705", "tokenizer-beyond-vocabulary", "the tokenizer has more ids than the model has rows")

_BYTE_IDS = 257
"""256 bytes and the end of a document."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for the bytes tokenizer; a file's ids are counted when it is opened."""
    rows = subject.inventory.vocab_size
    if isinstance(subject.plan.data.tokenizer, ByteTokenizer) and rows < _BYTE_IDS:
        yield CODE.at(
            subject.plan.span("data.tokenizer"),
            f"bytes has {_BYTE_IDS} ids, vocab_size = {rows}",
            help=f"take a model with vocab_size of at least {_BYTE_IDS}, or `tokenizer = file(...)`",
        )


RULE = Rule((CODE,), check)
