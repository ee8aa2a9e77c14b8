"""Settings that a task has no meaning for, or that have not been compared with one process for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from planc.checks.data.tokenizer_file import has_mask_token
from planc.checks.model.image_settings import of_images, of_text_alone
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import divides_sequence
from planc.diagnostics import Code
from planc.hub.model_config import model_config
from planc.inventory.schema import Kind
from planc.plan.attention_calls import sees_later_tokens
from planc.plan.balance import is_balanced
from planc.plan.data import (
    FileTokenizer,
    HfDataset,
    HfHub,
    JsonLines,
    Labeled,
    Mapped,
    Matched,
    Packing,
    PythonStdlib,
    TextFiles,
)
from planc.plan.spec import AttentionKernel
from planc.plan.task import (
    CausalLm,
    Classification,
    Embedding,
    ImageTextToText,
    MaskedLm,
    Seq2SeqLm,
    SequenceClassification,
    TokenClassification,
)
from planc.plan.train import Contrastive, CrossEntropy, Preference
from planc.vocab import MeshDim, Pooling

CODE = Code("P775", "task-unsupported", "not supported for this task")

_OVER = {
    MeshDim.CP: "no `context_parallel` has been compared with one process for this task",
    MeshDim.PP: "no stage of such a model has been compared with one process",
}


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each setting."""
    settings: Iterable[tuple[str, str, str]]
    match subject.plan.model.task:
        case CausalLm():
            settings = (*_of_rows(subject), *_of_vectors(subject), *of_text_alone(subject))
        case MaskedLm() as task:
            settings = (
                *(*_of_shares(task), *_of_model(subject), *_of_masked_data(subject)),
                *_of_vectors(subject),
            )
        case Seq2SeqLm():
            settings = (*_of_model(subject), *_of_whole_texts(subject), *_of_mapped_data(subject))
        case ImageTextToText() as task:
            settings = (*_of_model(subject), *of_images(subject, task))
        case Embedding() as task:
            settings = (
                *(*_of_pooling(subject, task), *_of_model(subject), *_of_padding(subject)),
                *(*_of_contrast(subject), *_of_matched_data(subject)),
            )
        case Classification() as task:
            settings = (
                *(*_of_labels(subject, task), *_of_model(subject), *_of_padding(subject)),
                *(*_of_loss(subject), *_of_labeled_data(subject)),
            )
    for place, text, help in settings:
        yield CODE.at(subject.plan.span(place), text, help=help)


_Found = Iterator[tuple[str, str, str]]
"""The setting, what is wrong, and the help."""


def _of_rows(subject: Subject) -> _Found:
    help = (
        "write `task = sequence_classification(labels = 2)` in `model`, or `token_classification` for the "
        "classes of words, or name another source"
    )
    for path, source in subject.plan.data.sources():
        if isinstance(source, Labeled):
            yield path, "a language model has no classes to learn", help
        if isinstance(source, Matched):
            yield path, "a language model has no pairs to match", "write `task = embedding()` in `model`"
        if isinstance(source, Mapped):
            help = "write `task = seq2seq_lm` in `model`, or `chat(...)` here, of prompts and completions"
            yield path, "a causal language model has no input apart from its target", help


def _of_vectors(subject: Subject) -> _Found:
    if isinstance(subject.plan.train.loss, Contrastive):
        yield "train.loss", "it compares vectors of texts", "write `task = embedding()` in `model`"


def _of_pooling(subject: Subject, task: Embedding) -> _Found:
    if task.pooling is Pooling.CLS and not sees_later_tokens(subject.inventory):
        text = "the first token of a decoder sees no other one"
        yield "model.task", text, "write `embedding(pooling = last)`"


def _of_contrast(subject: Subject) -> _Found:
    plan = subject.plan
    if not isinstance(plan.train.loss, Contrastive):
        place = "train.loss" if "train.loss" in plan.spans else "model.task"
        help = "write `loss = contrastive(group = 8)` in `train`"
        yield place, "vectors of texts are compared with each other", help
    if is_balanced(plan, subject.inventory):
        # config.json may enable one, with `output_router_logits`.
        place = "model.hf" if plan.balance is None else "balance"
        help = "write `balance { loss = none }`" if plan.balance is None else "remove the block"
        yield place, "a balance loss is a mean over tokens, and this one over pairs", help
    if plan.compile is not None:
        reason = "no compiled model has been compared with one process for this task"
        yield "compile", reason, "remove the block"


def _of_matched_data(subject: Subject) -> _Found:
    for path, source in subject.plan.data.sources():
        if not isinstance(source, Matched):
            help = 'write `matched("pairs.jsonl")`, of rows with a `query` and its `positive`'
            yield path, "its rows have no two texts that belong together", help
        elif path.startswith("data.source."):
            help = "write `source = matched(...)` in `data`, with several files if need be"
            yield path, "pairs are read from the one `source` of `data` alone", help


_HELP_OF_TARGETS = 'write `mapped("train.jsonl")`, of rows with an `input` and its `target`'


def _of_whole_texts(subject: Subject) -> _Found:
    """Settings that no encoder-decoder has been compared with one process under."""
    plan = subject.plan
    reason = "no encoder-decoder has been compared with one process with it"
    if any(divides_sequence(assignment.use) for assignment in subject.bound.styles.values()):
        help = "keep the sequence whole: leave out `sequence_parallel` and `Shard(1)`"
        yield "tensor_parallel", reason, help
    for fqn in subject.bound.styles:
        module = subject.inventory.get(fqn)
        is_embedding = module is not None and module.kind is Kind.EMBEDDING
        if module is not None and is_embedding and not subject.inventory.holds_tokens(module):
            text = f"`{fqn}` holds no tokens, and no encoder-decoder has been compared with parts of it"
            yield "tensor_parallel", text, "leave out its rule: every rank has all of it then"
    for place, block in (("compile", plan.compile), ("balance", plan.balance)):
        if block is not None:
            yield place, reason, "remove the block"
    if not isinstance(plan.train.loss, CrossEntropy):
        yield "train.loss", reason, "remove it: the loss is the cross entropy of the target's tokens"


def _of_mapped_data(subject: Subject) -> _Found:
    data = subject.plan.data
    others = [path for path, source in data.sources() if not isinstance(source, Mapped)]
    for path in others:
        yield path, "its rows have no targets", _HELP_OF_TARGETS
    # The packing follows from the source.
    if data.packing is not Packing.NONE and not others:
        yield "data.packing", "each sequence holds one input", "write `packing = none`, or leave it out"


def _of_shares(task: MaskedLm) -> _Found:
    if task.mask_replace + task.random_replace > 1:
        total = f"{task.mask_replace:g} + {task.random_replace:g}"
        yield (
            "model.task",
            f"{total} of the chosen tokens are replaced",
            "lower one share: the sum is at most 1",
        )


def _of_labels(subject: Subject, task: Classification) -> _Found:
    own = subject.inventory.num_labels
    if task.labels == 1:
        help = "write 2 or more classes, here and in config.json"
        of_words = isinstance(task, TokenClassification)
        what = "nothing to learn" if of_words else "a regression, which planc does not train"
        yield "model.task", f"one class is {what}", help
    elif own is not None and own != task.labels:
        help = f"write `labels = {own}`, or give `id2label` and `label2id` {task.labels} classes"
        yield "model.task", f"{task.labels} classes, and the model's config.json has {own}", help
    elif task.names and len(task.names) != task.labels:
        help = "name each class once, in the order of their numbers"
        yield "model.task", f"{task.labels} classes, and {len(task.names)} `names`", help
    elif task.names and (known := _other_names(subject, task.names)):
        help = f"write `names = {json.dumps(known)}`, or train a new head: another class in config.json"
        yield "model.task", "the model's config.json has other names of classes", help


def _other_names(subject: Subject, names: tuple[str, ...]) -> list[object] | None:
    """The names of a classifier's own classes, if they are not these. LABEL_0 and its like are none."""
    if subject.base is None or subject.inventory.new_head:
        return None
    by_number = model_config(subject.plan.model.hf, base=subject.base).get("id2label")
    if not isinstance(by_number, dict):
        return None
    # A file may sort its keys as text: 0, 1, 10, 2.
    known = [by_number.get(str(number)) for number in range(len(names))]
    is_made_up = all(name == f"LABEL_{number}" for number, name in enumerate(known))
    return None if is_made_up or known == list(names) else known


def _of_model(subject: Subject) -> _Found:
    plan = subject.plan
    sees_images = isinstance(plan.model.task, ImageTextToText)
    for mesh_dim, reason in _OVER.items():
        if plan.mesh.size(mesh_dim) > 1 and not (sees_images and mesh_dim is MeshDim.CP):
            yield f"mesh.{mesh_dim}", reason, f"set `{mesh_dim}` to 1"
    if plan.model.architecture is not None:
        help = "remove `architecture`, or write `task = causal_lm`"
        yield "model.architecture", "a model class of a plan's own is trained as a causal one", help


def _of_padding(subject: Subject) -> _Found:
    """Settings under which tokens would see padding, or a rank would miss the token of a text's class."""
    plan, inventory = subject.plan, subject.inventory
    if any(divides_sequence(assignment.use) for assignment in subject.bound.styles.values()):
        help = "keep the sequence whole: leave out `sequence_parallel` and `Shard(1)`"
        of_text = "the class follows from one token, which one rank of tp would have"
        others = "no run with it has been compared with one process for this task"
        is_of_text = isinstance(plan.model.task, SequenceClassification)
        yield "tensor_parallel", of_text if is_of_text else others, help
    if not sees_later_tokens(inventory):
        return
    if plan.model.attention is AttentionKernel.EAGER:
        yield "model.attention", "tokens of an encoder would see padding", "remove it"
    if plan.compile is not None and not isinstance(plan.model.task, Embedding):
        reason = "a compiled encoder has not been compared with one process on texts of several lengths"
        yield "compile", reason, "remove the block"


def _of_loss(subject: Subject) -> _Found:
    plan = subject.plan
    if not isinstance(plan.train.loss, CrossEntropy):
        help = "remove it: the loss is the cross entropy of classes"
        yield "train.loss", "it is of tokens, or of pairs of answers", help
    if plan.balance is not None:
        yield "balance", "its losses are means over tokens, and this one over classes", "remove the block"


_HELP_OF_TEXTS = 'write `labeled("train.jsonl")`, of rows with a `text` and the number of its class'
_HELP_OF_WORDS = (
    'write `labeled("train.jsonl", field = "tokens", label = "ner_tags")`, of rows with a list of words '
    "and a list of their classes"
)


def _of_labeled_data(subject: Subject) -> _Found:
    data = subject.plan.data
    if data.packing is not Packing.NONE:
        yield "data.packing", "each sequence holds one text", "write `packing = none`, or leave it out"
    by_word = isinstance(subject.plan.model.task, TokenClassification)
    for path, source in data.sources():
        if not isinstance(source, Labeled):
            yield path, "its rows have no classes", _HELP_OF_WORDS if by_word else _HELP_OF_TEXTS
        elif by_word and source.pair is not None:
            help = "remove `pair`, or write `task = sequence_classification(...)`"
            yield path, "a pair of texts has one class, and words have their own", help


def _of_masked_data(subject: Subject) -> _Found:
    data = subject.plan.data
    if data.packing is not Packing.ATTEND:
        text = f"{data.packing} needs attention that hides other documents, or padding, from both sides"
        yield "data.packing", text, "write `packing = attend`: sequences are full, and documents share them"
    if isinstance(subject.plan.train.loss, Preference):
        help = "remove it, or write `task = causal_lm` in `model`"
        yield "train.loss", "it compares answers, and this task learns masked tokens", help
    for path, source in data.sources():
        if not isinstance(source, TextFiles | JsonLines | HfDataset | HfHub | PythonStdlib):
            text = "this source can decide which tokens are labels, and so does the task"
            yield path, text, "name a source of text, such as `text(...)` or `jsonl(...)`"
    if isinstance(data.tokenizer, FileTokenizer) and subject.base is not None:
        path = data.tokenizer.path
        if has_mask_token(subject.base / path) is False:
            help = 'name the tokenizer of a masked language model, or add `"mask_token"` to its settings'
            yield "data.tokenizer", f"{path} names no mask token", help
