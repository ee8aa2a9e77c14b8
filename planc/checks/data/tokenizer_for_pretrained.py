"""Pretrained weights that would be trained on another tokenizer's ids."""

from __future__ import annotations

from planc.checks.data.tokenizer_file import token_ids
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.hub.names import model_folder
from planc.plan.data import ByteTokenizer, FileTokenizer
from planc.plan.spec import Weights

CODE = Code(
    "P735", "tokenizer-for-pretrained", "pretrained weights expect another tokenizer", Severity.WARNING
)

_MAX_BYTE_ROWS = 512
"""A byte-level model has 256 rows, some for special tokens, and some of padding."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at the tokenizer if it gives the ids of pretrained weights other meanings."""
    plan = subject.plan
    if plan.model.weights is not Weights.PRETRAINED:
        return
    match plan.data.tokenizer:
        case ByteTokenizer():
            text = _of_bytes(subject.inventory.vocab_size)
        case FileTokenizer(path):
            text = _of_file(subject, path)
    if text:
        trained = "these were trained on the ids of the model's own tokenizer"
        yield CODE.at(
            plan.span("data.tokenizer"),
            text,
            secondary=(Label(plan.span("model.weights"), trained),),
            help='write `tokenizer = file("...")`, with the tokenizer.json next to the weights',
        )


def _of_bytes(rows: int) -> str:
    large = rows > _MAX_BYTE_ROWS
    return f"bytes would use 256 of the model's {rows} ids, with different meanings" if large else ""


def _of_file(subject: Subject, path: str) -> str:
    """The words for a tokenizer to which most of the model's own tokens have other ids; none for its own."""
    if subject.base is None:
        return ""
    folder, file = model_folder(subject.plan.model.hf, base=subject.base), subject.base / path
    if folder.resolve() in (file.resolve(), file.resolve().parent):
        return ""
    own, given = token_ids(folder), token_ids(file)
    if not own or not given:
        return ""
    num_kept = sum(given.get(token) == number for token, number in own.items())
    if 2 * num_kept >= len(own):
        return ""
    return f"{path} has the id of the model's own tokenizer for {num_kept} of its {len(own)} tokens"
