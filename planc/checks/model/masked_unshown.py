"""Settings with which masked language models have not been compared with one process."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.data.tokenizer_file import has_mask_token
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.data import (
    FileTokenizer,
    HfDataset,
    HfHub,
    JsonLines,
    Packing,
    PythonStdlib,
    TextFiles,
)
from planc.plan.task import MaskedLm
from planc.vocab import MeshDim

CODE = Code("P775", "masked-unshown", "not shown for masked language models")

_OVER = {
    MeshDim.CP: "every token sees all others, and the attentions of `context_parallel` are causal",
    MeshDim.PP: "its stages have not been compared with one process",
}


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each setting."""
    task = subject.plan.model.task
    if isinstance(task, MaskedLm):
        for place, text, help in (*_of_task(task), *_of_model(subject), *_of_data(subject)):
            yield CODE.at(subject.plan.span(place), text, help=help)


_Found = Iterator[tuple[str, str, str]]
"""The setting, what is wrong, and the help."""


def _of_task(task: MaskedLm) -> _Found:
    if task.mask_replace + task.random_replace > 1:
        total = f"{task.mask_replace:g} + {task.random_replace:g}"
        yield (
            "model.task",
            f"{total} of the chosen tokens are replaced",
            "lower one share: the sum is at most 1",
        )


def _of_model(subject: Subject) -> _Found:
    plan = subject.plan
    for mesh_dim, reason in _OVER.items():
        if plan.mesh.size(mesh_dim) > 1:
            yield f"mesh.{mesh_dim}", reason, f"set `{mesh_dim}` to 1"
    if plan.adapter is not None:
        yield "adapter", "an adapter of it has not been loaded by peft", "remove the block: train all weights"
    if plan.model.architecture is not None:
        help = "remove `architecture`, or write `task = causal_lm`"
        yield "model.architecture", "a model class of a plan's own is trained as a causal one", help


def _of_data(subject: Subject) -> _Found:
    data = subject.plan.data
    if data.packing is not Packing.ATTEND:
        text = f"{data.packing} needs attention that hides other documents, or padding, from both sides"
        yield "data.packing", text, "write `packing = attend`: sequences are full, and documents share them"
    for path, source in data.sources():
        if not isinstance(source, TextFiles | JsonLines | HfDataset | HfHub | PythonStdlib):
            text = "this source can decide which tokens are labels, and so does the task"
            yield path, text, "name a source of text, such as `text(...)` or `jsonl(...)`"
    if isinstance(data.tokenizer, FileTokenizer) and subject.base is not None:
        path = data.tokenizer.path
        if has_mask_token(subject.base / path) is False:
            help = 'name the tokenizer of a masked language model, or add `"mask_token"` to its settings'
            yield "data.tokenizer", f"{path} names no mask token", help
