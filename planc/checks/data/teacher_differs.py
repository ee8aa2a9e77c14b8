"""A teacher whose tokens are not those of the model that it teaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.checks.data.tokenizer_file import token_ids
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub.model_config import model_config
from planc.hub.names import model_folder
from planc.plan.data import FileTokenizer
from planc.plan.task import MaskedLm
from planc.plan.train import Distillation

CODE = Code("P762", "teacher-differs", "the teacher's probabilities are not of this model's tokens")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each way in which a stored id would mean another token, or none."""
    plan, loss = subject.plan, subject.plan.train.loss
    if not isinstance(loss, Distillation):
        return
    for path, text, place, help in _obstacles(subject, loss):
        secondary = (Label(plan.span(path), place),)
        yield CODE.at(plan.span("train.loss"), text, secondary=secondary, help=help)


def _obstacles(subject: Subject, loss: Distillation) -> Iterator[tuple[str, str, str, str]]:
    """The path of another setting, what is wrong, a text for the setting, and the help."""
    plan, base, rows = subject.plan, subject.base, subject.inventory.vocab_size
    if isinstance(plan.model.task, MaskedLm):
        text = "a teacher's next tokens are stored, and this task's labels are hidden tokens"
        yield "model.task", text, "the task", "write `task = causal_lm`, or another loss"
    if loss.top_k > rows:
        text = f"`top_k` is {loss.top_k}, and the model has {rows} tokens"
        yield "model.hf", text, "the model", f"set `top_k` to at most {rows}"
    if base is None:
        return
    size = _vocab_size(loss.teacher, base=base)
    if size is not None and size != rows:
        text = f"its vocab_size is {size}, and the model's is {rows}"
        yield "model.hf", text, "the model", "name a teacher with the model's own vocabulary"
        return
    own = plan.data.tokenizer
    others = token_ids(model_folder(loss.teacher, base=base))
    ids = token_ids(base / own.path) if isinstance(own, FileTokenizer) else None
    if others is not None and isinstance(own, FileTokenizer) and ids is not None and ids != others:
        token = min({*ids.items()} ^ {*others.items()}, key=lambda pair: (pair[1], pair[0]))[0]
        text = f'its token "{token}" is {_id(others, token)}, and the plan\'s is {_id(ids, token)}'
        help = "use the teacher's tokenizer, with a model that was trained with it"
        yield "data.tokenizer", text, "the tokenizer", help
    if others is not None and not isinstance(own, FileTokenizer):
        help = "write `tokenizer = file(...)`, with the teacher's tokenizer.json"
        yield "data.tokenizer", "it has a tokenizer.json, and the data is bytes", "the tokenizer", help


def _vocab_size(teacher: str, *, base: Path) -> int | None:
    """The rows of a teacher's logits; None if its config.json is not here, or does not say."""
    config = model_config(teacher, base=base)
    inner = config.get("text_config")
    size = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    return size if isinstance(size, int) else None


def _id(ids: object, token: str) -> str:
    number = ids.get(token) if isinstance(ids, dict) else None
    return "absent" if number is None else f"id {number}"
